"""Objectives over pairs of a chosen and a rejected response: what they have in common, and that of reward models."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import logsigmoid

from rljob_trainer.algorithm.metrics import MetricAccumulator
from rljob_trainer.algorithm.objective import MeasuredStep, Objective, Output, Targets, TokenLoss
from rljob_trainer.algorithm.tokens import Sequences
from rljob_trainer.wire.batch import Columns


class PairTerms(NamedTuple):
    """Loss and metrics of k pairs. All float64."""

    loss: torch.Tensor
    """[k]"""
    token_metrics: Mapping[str, torch.Tensor]
    """[name in PairObjective.token_metrics] -> [k]."""


class PairObjective(Objective):
    """The mean loss over the pairs of a mini-batch. A pair is a group: sample 0 was chosen, sample 1 rejected."""

    prefix = "train"
    pairs = True
    token_metrics: tuple[str, ...] = ("pairs", "accuracy", "chosen_reward", "rejected_reward")

    def loss_weights(self, counts: Sequence[int]) -> list[float]:
        return [2 / len(counts)] * len(counts)

    def advantages(self, step: MeasuredStep) -> Targets:
        """Raises ValueError when a group is not a pair."""
        require_pairs(step.batch.columns)
        return Targets()

    def metrics(self, sums: MetricAccumulator) -> dict[str, float]:
        means = {name: sums[name] / sums["pairs"] for name in self.token_metrics[1:]}
        margin = means["chosen_reward"] - means["rejected_reward"]
        return {f"train/{name}": mean for name, mean in means.items()} | {"train/margin": margin}


def require_pairs(columns: Columns) -> None:
    groups, samples = columns.group.tolist(), columns.sample.tolist()
    paired = samples == [0, 1] * (len(samples) // 2) and groups[::2] == groups[1::2]
    if not paired or not columns.response_length.all():
        raise ValueError("a group of the step is not a chosen and a rejected response")


def margins(of_responses: torch.Tensor) -> torch.Tensor:
    """[k, 2] -> [k]: value of the chosen response minus that of the rejected one."""
    return of_responses[:, 0] - of_responses[:, 1]


def pair_terms(loss: torch.Tensor, rewards: torch.Tensor) -> PairTerms:
    """`loss`: [k]. `rewards`: [k, 2], of the chosen and the rejected response, for the metrics."""
    chosen, rejected = rewards.detach().unbind(1)
    ahead = (chosen > rejected).double()
    return PairTerms(loss, {"accuracy": ahead, "chosen_reward": chosen, "rejected_reward": rejected})


def pair_loss(
    values: torch.Tensor,
    mask: torch.Tensor,
    sequences: Sequences,
    terms_of: Callable[[torch.Tensor, torch.Tensor], PairTerms],
) -> TokenLoss:
    """A loss of pairs in the form of a per-token loss, so that responses may be split over context-parallel ranks.

    The loss of a pair depends on the sums of `values` over its two responses. Each token gets an equal share of the pair's loss as its value, and
    as its gradient that of the loss with respect to the sum of its response.

    Args:
        values: [t], with gradients, summed over the masked tokens of each response
        terms_of: sums [k, 2] with gradients and numbers of tokens [k, 2], of chosen and rejected responses -> terms of the k pairs
    """
    sums, lengths = sequences.total(torch.stack((values.detach() * mask, mask), dim=1)).unbind(1)
    with torch.enable_grad():
        sums = sums.detach().requires_grad_()
        found = terms_of(sums.view(-1, 2), lengths.view(-1, 2))
        (slopes,) = torch.autograd.grad(found.loss.sum(), sums)
    share = mask / sequences.spread(lengths).clamp(min=1) / 2
    of_pairs = lambda x: sequences.spread(x.detach().repeat_interleave(2)) * share  # noqa: E731
    slope = sequences.spread(slopes) * (values - values.detach()) * mask
    measured = {"pairs": torch.ones_like(found.loss)} | dict(found.token_metrics)
    return TokenLoss(of_pairs(found.loss) + slope, mask, {name: of_pairs(x) for name, x in measured.items()})


class RewardModelObjective(PairObjective):
    """L = -log sigmoid(r_chosen - r_rejected), r the value at the last token of a response (Bradley and Terry 1952; arXiv 2203.02155, equation 1)."""

    scores = True

    def advantages(self, step: MeasuredStep) -> Targets:
        """Adds the column `last`, 1 for the last token of each response."""
        super().advantages(step)
        lengths = step.batch.columns.response_length
        return Targets({"last": {row: last(int(lengths[row])) for row in step.rows}})

    def loss(self, columns: Mapping[str, torch.Tensor], sequences: Sequences, output: Output) -> TokenLoss:
        return pair_loss(output.values(), columns["last"], sequences, bradley_terry)


def last(count: int) -> torch.Tensor:
    """[count]"""
    column = torch.zeros(count)
    column[-1:] = 1.0
    return column


def bradley_terry(scores: torch.Tensor, lengths: torch.Tensor) -> PairTerms:
    """`scores`: [k, 2]"""
    return pair_terms(-logsigmoid(margins(scores)), scores)
