"""Objectives of supervised tasks on a dense vocabulary, without Megatron."""

from collections.abc import Mapping, Sequence

import torch

from rljob_trainer.algorithm.objective import MetricAccumulator, Objective
from rljob_trainer.algorithm.tokens import Predictions
from trainer.algorithm.cases import responses


class Dense:
    """What a language model says whose logits [t, v] are given, or a value model whose values [t] are."""

    def __init__(self, raw: torch.Tensor, targets: torch.Tensor | None = None):
        self._raw, self._targets = raw, targets

    def predictions(self, temperature: float, candidates: torch.Tensor | None = None) -> Predictions:
        assert self._targets is not None
        log_p = (self._raw / temperature).log_softmax(-1)
        of_targets = log_p.gather(1, self._targets[:, None])[:, 0]
        correct = (self._raw.argmax(-1) == self._targets).double()
        further = log_p[:, :0] if candidates is None else log_p.gather(1, candidates)
        return Predictions(of_targets, -(log_p.exp() * log_p).sum(-1), log_p.mean(-1), correct, further)

    def values(self) -> torch.Tensor:
        return self._raw


def learn(
    objective: Objective, columns: Mapping[str, torch.Tensor], lengths: Sequence[int], output: Dense
) -> tuple[torch.Tensor, MetricAccumulator]:
    """The loss of one mini-batch in one micro-batch, whose sequences have so many tokens, and what was measured."""
    counts = [int(part.sum()) for part in columns["mask"].split(list(lengths))]
    weights = torch.tensor(objective.loss_weights(counts), dtype=torch.float64).repeat_interleave(torch.tensor(lengths))
    found = objective.loss(columns, responses(*lengths), output)
    loss = (weights * found.loss).sum()
    return loss, MetricAccumulator.of(loss, found.mask, found.token_metrics)
