"""What an advantage estimator sees: numbers of all responses of a step, and the tokens of those that this rank has."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from rljob_trainer.algorithm.tokens import alone


@dataclass(frozen=True, slots=True)
class Episodes:
    """The n responses of a step, and the t tokens of those that this rank has, one response after another in ascending order.

    What is [n] describes the whole step and is the same on every rank. What is [t] is this rank's alone: no rank has the tokens of all responses.
    All tensors are on the CPU, and float64 unless something else is said.
    """

    rewards: torch.Tensor
    """[n], rewards of whole responses."""
    groups: torch.Tensor
    """[n], any integers; responses to the same prompt have the same one."""
    counts: torch.Tensor
    """[n] int64, tokens of each response that this rank has; 0 for responses of other ranks."""
    mask: torch.Tensor
    """[t], 1.0 for response tokens that the policy sampled, else 0.0."""
    token_rewards: torch.Tensor
    """[t], additional rewards of tokens, such as -coefficient * KL, without `rewards`."""
    values: torch.Tensor | None = None
    """[t], the critic's estimate of the return before each token. For `gae`."""
    baselines: torch.Tensor | None = None
    """[n], reward of the prompt's greedy response. For `remax`."""

    own_rewards: torch.Tensor | None = None
    """[t], added to the advantage of its token after estimation, without any comparison between responses (distillation). None: no such term."""
    turn_rewards: torch.Tensor | None = None
    """[t], the part of `rewards` that was earned before the end of the response, at the tokens that earned it. None: all at the end."""
    trajectories: torch.Tensor | None = None
    """[n], any integers; responses that are branches of one trajectory have the same one, and share its reward. None: no branches."""
    over_ranks: Callable[[torch.Tensor], torch.Tensor] = alone
    """[n] -> [n], the sum over the ranks, of which one has each response and the others pass 0 for it. The same on every rank."""

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """[t] -> [n], the sum over each response of the step. Collective: every rank calls it, in the same order. A sum does not depend on which rank
        has the response, so that every layout gets the same bits."""
        sums = torch.zeros(len(self.counts), dtype=values.dtype)
        sums[self._here] = _sums(values, self.counts[self._here])
        return self.over_ranks(sums)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[n] -> [t]: a response's value at each of its sampled tokens."""
        return values.repeat_interleave(self.counts) * self.mask

    def moments(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Number, mean and sum of squared deviations from the mean of `values` [t] over all sampled tokens of the step. Collective."""
        count = self.lengths.sum()
        mean = self.total(values * self.mask).sum() / count.clamp(min=1)
        return count, mean, self.total(((values - mean) * self.mask) ** 2).sum()

    def accumulate(self, rewards: torch.Tensor, values: torch.Tensor, gamma: float, decay: float) -> torch.Tensor:
        """A_t = d_t + decay A_t+1, d_t = r_t + gamma V_t+1 - V_t, from the last token of each response back. Tokens that the policy did not sample
        are skipped: they are not steps of the episode.

        Args:
            rewards, values: [t]

        Returns: [t], 0 where the mask is
        """
        sampled, counts = self._sampled, self._sampled_counts
        rewards, values = rewards[sampled], values[sampled]
        following = torch.cat((values[1:], values.new_zeros(1)))[: len(values)]
        following[counts.cumsum(0)[counts > 0] - 1] = 0.0
        result = torch.zeros_like(self.mask)
        result[sampled] = discounted(rewards + gamma * following - values, counts, decay)
        return result

    @property
    def lengths(self) -> torch.Tensor:
        """[n], sampled tokens of each response. Collective."""
        return self.total(self.mask)

    @property
    def trajectory(self) -> torch.Tensor:
        """[n], index of the trajectory of each response, from 0 to m - 1."""
        given = torch.arange(len(self.rewards)) if self.trajectories is None else self.trajectories
        return given.unique(return_inverse=True)[1]

    def of_trajectories(self, values: torch.Tensor) -> torch.Tensor:
        """[n] -> [m], the value of the first branch of each trajectory."""
        index, rows = self.trajectory, torch.arange(len(self.rewards))
        first = torch.full((int(index.max()) + 1,), len(rows)).scatter_reduce(0, index, rows, "amin")
        return values[first]

    def over_branches(self, values: torch.Tensor) -> torch.Tensor:
        """[n] -> [m], summed over the branches of each trajectory."""
        index = self.trajectory
        return torch.zeros(int(index.max()) + 1, dtype=values.dtype).index_add(0, index, values)

    @property
    def outcomes(self) -> torch.Tensor:
        """[m], undiscounted sum of all rewards of each trajectory. Collective."""
        return self.of_trajectories(self.rewards) + self.over_branches(self.total(self.token_rewards * self.mask))

    def rewards_of_tokens(self) -> torch.Tensor:
        """[t], rewards by token: those of tokens and turns where they were earned, and the rest of the trajectory's reward at the last token of each
        of its branches. A response that maxTokens cut off counts as ended, too. Collective."""
        rewards, rest = self.token_rewards * self.mask, self.rewards
        if self.turn_rewards is not None:
            earned = self.turn_rewards * self.mask
            rewards, rest = rewards + earned, rest - self.over_branches(self.total(earned))[self.trajectory]
        counts = self._sampled_counts
        last = torch.arange(len(self.mask))[self._sampled][counts.cumsum(0)[counts > 0] - 1]
        rewards[last] += rest[self._here][counts > 0]
        return rewards

    @property
    def _here(self) -> torch.Tensor:
        """[k], the responses that this rank has."""
        return self.counts.nonzero()[:, 0]

    @property
    def _sampled(self) -> torch.Tensor | slice:
        """The index of this rank's sampled tokens: all of them, unless environments wrote some."""
        return slice(None) if self.mask.all() else self.mask.nonzero()[:, 0]

    @property
    def _sampled_counts(self) -> torch.Tensor:
        """[k] int64, sampled tokens of each response that this rank has."""
        return _sums(self.mask, self.counts[self._here]).long()


def discounted(values: torch.Tensor, counts: torch.Tensor, decay: float) -> torch.Tensor:
    """y_j = x_j + decay y_j+1 in each of the consecutive rows of `values` [t], of which row i has counts[i]. Returns [t].

    With decay 1 it is a reversed cumulative sum, which adds in the order of the tokens. Otherwise y_j first covers one token, then 2, 4, 8, ...: a
    loop over the tokens would take minutes for a large step.
    """
    sums = _cumulative if decay == 1.0 else partial(_doubled, decay=decay)
    return torch.cat([values.new_zeros(0), *map(sums, values.split(counts.tolist()))])


def _cumulative(row: torch.Tensor) -> torch.Tensor:
    return row.flip(0).cumsum(0).flip(0)


def _doubled(row: torch.Tensor, decay: float) -> torch.Tensor:
    sums, covered = row.clone(), 1
    while covered < len(row):
        sums[:-covered] += decay**covered * sums[covered:]
        covered *= 2
    return sums


def _sums(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The sum of each of the consecutive rows of `values` [t], of which row i has counts[i]."""
    rows = [row.sum() for row in values.split(counts.tolist())] if len(counts) else []
    return torch.stack(rows) if rows else values.new_zeros(0)
