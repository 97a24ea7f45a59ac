"""What an advantage is estimated from, and what it is: always the whole step, in float64, so that no estimate depends on how the step is cut."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Episodes:
    """n responses, padded to the longest of T tokens. All tensors are float64 and on one device, but for `groups`."""

    rewards: torch.Tensor
    """[n], of whole responses."""
    groups: torch.Tensor
    """[n] of any integers; responses with the same one answer the same prompt."""
    mask: torch.Tensor
    """[n, T], 1.0 for tokens of the response that the policy chose, else 0.0."""
    token_rewards: torch.Tensor
    """[n, T], such as -coefficient * KL. The reward of the response is not in it."""
    values: torch.Tensor | None = None
    """[n, T], the critic's: the return it expects before each token. For `gae`."""
    baselines: torch.Tensor | None = None
    """[n], reward of the prompt's greedy response. For `remax`."""

    @property
    def lengths(self) -> torch.Tensor:
        """[n], in tokens."""
        return self.mask.sum(1)

    @property
    def outcomes(self) -> torch.Tensor:
        """[n], what a response earned altogether, undiscounted."""
        return self.rewards + (self.token_rewards * self.mask).sum(1)

    def rewards_of_tokens(self) -> torch.Tensor:
        """[n, T], the reward of the response at its last token: an episode ends there, also when maxTokens cut it off."""
        rewards = self.token_rewards * self.mask
        last = (self.mask * torch.arange(1, self.mask.shape[1] + 1)).argmax(1)
        rewards[torch.arange(len(last)), last] += self.rewards * (self.lengths > 0)
        return rewards

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[n] to [n, T]: a response's value for each of its tokens."""
        return values[:, None] * self.mask


@dataclass(frozen=True, slots=True)
class Advantages:
    """Zero where the mask is."""

    advantages: torch.Tensor
    """[n, T]"""
    returns: torch.Tensor | None = None
    """[n, T], what the critic learns. Of `gae` only."""


def by_group(
    values: torch.Tensor, groups: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply `function` to the rows of `values` [n, ...] of each group alone; it gives one number [k] per row. Returns [n]."""
    result = torch.zeros(len(values), dtype=values.dtype)
    for group in groups.unique():
        members = groups == group
        result[members] = function(values[members])
    return result
