"""What is known of each token of a micro-batch, and which response it belongs to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch


class Predictions(NamedTuple):
    """What a language model said of the token after each: [t] but for the last, in float32. All but `correct` carry gradients."""

    log_probs: torch.Tensor
    """Of the token that came."""
    entropy: torch.Tensor
    mean_log_probs: torch.Tensor
    """Over the vocabulary."""
    correct: torch.Tensor
    """1.0 where no token was likelier than the one that came."""
    candidates: torch.Tensor
    """[t, K], log-probabilities of the K further tokens at each place that were asked about. With gradients."""


class TokenColumns(NamedTuple):
    """In packed order, [t] but for candidates. Only `log_probs`, `entropy` and `candidates` carry gradients."""

    log_probs: torch.Tensor
    """Under the policy that is being trained."""
    entropy: torch.Tensor
    old_log_probs: torch.Tensor
    """Under the policy before the step's first update, in the trainer's arithmetic; with a single update the detached `log_probs`.
    With `rolloutCorrection.bypass` nobody measures them: the detached `log_probs` then, too."""
    rollout_log_probs: torch.Tensor
    """As the rollouts reported them."""
    reference_log_probs: torch.Tensor | None
    teacher_log_probs: torch.Tensor | None
    """Of `algorithm.distillation`, at temperature 1."""
    advantages: torch.Tensor
    mask: torch.Tensor
    """1.0 for tokens of responses; 0.0 for prompts, padding and the responses that `overlong.filter` leaves out."""
    candidates: torch.Tensor | None = None
    """[t, K], log-probabilities under the policy of the teacher's K likeliest tokens; None without `distillation.topK`."""
    teacher_candidates: torch.Tensor | None = None
    """[t, K], of the same tokens under the teacher."""


def alone(values: torch.Tensor) -> torch.Tensor:
    """Nobody else has parts of our sequences."""
    return values


@dataclass(frozen=True, slots=True)
class Sequences:
    """The responses of a micro-batch."""

    index: torch.Tensor
    """[t], which of them a token belongs to, from 0; `count` for padding."""
    count: int
    over_ranks: Callable[[torch.Tensor], torch.Tensor] = alone
    """Adds a tensor [count, k] over the ranks that hold parts of the same responses (context parallelism). Without gradients."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Sums [count, k] of `values` [t, k] over each response, in float64: they do not depend on the order or on the cut."""
        sums = torch.zeros(self.count + 1, values.shape[1], dtype=torch.float64, device=values.device)
        return self.over_ranks(sums.index_add(0, self.index, values.double())[: self.count])

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[count] to [t]: a response's value for each of its tokens, 0 for padding."""
        return torch.cat((values, values.new_zeros(1)))[self.index]

    @torch.no_grad()
    def sum_and_mean(self, values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[t], for each token: sum and mean of `values` [t] over the masked tokens of its response; 0 where there are none."""
        sums, lengths = self.total(torch.stack((values * mask, mask), dim=1)).unbind(1)
        return self.spread(sums).to(values.dtype), self.spread(sums / lengths.clamp(min=1)).to(values.dtype)
