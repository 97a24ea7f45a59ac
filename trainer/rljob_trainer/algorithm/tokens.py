"""Per-token inputs of losses, and the assignment of tokens to responses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Predictions(NamedTuple):
    """A language model's prediction of the next token at each position. float32, [t] except `candidates`. All but `correct` carry gradients.

    Everything is 0 at positions whose next token is not in the loss, since their logits are not computed. Only where a micro-batch has no token in
    the loss, its first position has numbers, which nobody reads."""

    log_probs: torch.Tensor
    """Of the actual next token."""
    entropy: torch.Tensor
    mean_log_probs: torch.Tensor
    """Mean over the vocabulary."""
    correct: torch.Tensor
    """1.0 where the actual next token was the most likely one."""
    candidates: torch.Tensor
    """[t, K], of the K further tokens at each position that were passed as candidates."""


class TokenColumns(NamedTuple):
    """Inputs of a policy loss, [t] except candidates, in packed order. Only `log_probs`, `entropy` and `candidates` carry gradients.

    Log-probabilities under models of the trainer and the entropy are 0 outside of the mask."""

    log_probs: torch.Tensor
    """Under the policy that is being trained."""
    entropy: torch.Tensor
    old_log_probs: torch.Tensor
    """Under the policy before the step's first update, as the trainer computes them. They are the detached `log_probs` with a single update, and with
    `rolloutCorrection.bypass`."""
    rollout_log_probs: torch.Tensor
    """As the rollouts computed them when they sampled the tokens."""
    reference_log_probs: torch.Tensor | None
    teacher_log_probs: torch.Tensor | None
    """Under the teacher of `algorithm.distillation`."""
    advantages: torch.Tensor
    mask: torch.Tensor
    """1.0 for tokens in the loss; 0.0 for prompts, environments, padding, and responses that are left out (`overlong.filter`)."""
    candidates: torch.Tensor | None = None
    """[t, K], log-probabilities under the policy of the teacher's K likeliest tokens; None without `distillation.topK`."""
    teacher_candidates: torch.Tensor | None = None
    """[t, K], of the same tokens under the teacher."""


def alone(values: torch.Tensor) -> torch.Tensor:
    """Without context parallelism there is nothing to add."""
    return values


@dataclass(frozen=True, slots=True)
class Sequences:
    """The assignment of a micro-batch's tokens to its responses."""

    index: torch.Tensor
    """[t], index of the response that a token belongs to; `count` for padding."""
    count: int
    """Number of responses."""
    over_ranks: Callable[[torch.Tensor], torch.Tensor] = alone
    """Sums a tensor [count, k] over the context-parallel ranks, which have parts of the same responses. Without gradients."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """`values` [t, k] -> sums [count, k] over each response, in float64, in which neither order nor distribution over ranks matters."""
        sums = torch.zeros(self.count + 1, values.shape[1], dtype=torch.float64, device=values.device)
        return self.over_ranks(sums.index_add(0, self.index, values.double())[: self.count])

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[count] -> [t]: a response's value at each of its tokens, 0 for padding."""
        return torch.cat((values, values.new_zeros(1)))[self.index]

    @torch.no_grad()
    def sum_and_mean(self, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token [t] the sum and the mean of `values` [t] over the masked tokens of its response; 0 if there are none."""
        sums, lengths = self.total(torch.stack((values * mask, mask), dim=1)).unbind(1)
        return self.spread(sums).to(values.dtype), self.spread(sums / lengths.clamp(min=1)).to(values.dtype)
