"""Advantage estimators: always of the whole step, in float64, so that no estimate depends on how the step is cut over ranks.

To add one: write a function of (Episodes, AlgorithmSpec) with its formula and its paper, put it into ADVANTAGES, and name it in
spec.algorithm.advantage (operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rljob_api.spec.algorithm import AlgorithmSpec, Group

STD_EPSILON = 1e-6
"""Added to the standard deviation of a group, as in verl, slime and ROLL."""
VARIANCE_EPSILON = 1e-8


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

    own_rewards: torch.Tensor | None = None
    """[n, T], what counts for its token alone: added to its advantage, and compared with no other response. None: there is nothing."""
    turn_rewards: torch.Tensor | None = None
    """[n, T], the part of `rewards` that was earned before the end, at the tokens that earned it. None: there is none."""
    trajectories: torch.Tensor | None = None
    """[n] of any integers; responses with the same one are branches of one trajectory, which has one reward. None: each is one of its own."""

    @property
    def lengths(self) -> torch.Tensor:
        """[n], in tokens."""
        return self.mask.sum(1)

    @property
    def trajectory(self) -> torch.Tensor:
        """[n], of each response the number of its trajectory among m."""
        given = torch.arange(len(self.rewards)) if self.trajectories is None else self.trajectories
        return given.unique(return_inverse=True)[1]

    def of_trajectories(self, values: torch.Tensor) -> torch.Tensor:
        """[n] to [m], of each trajectory what its first branch has."""
        index, rows = self.trajectory, torch.arange(len(self.rewards))
        first = torch.full((int(index.max()) + 1,), len(rows)).scatter_reduce(0, index, rows, "amin")
        return values[first]

    def totals(self, values: torch.Tensor) -> torch.Tensor:
        """[n] to [m], summed over branches."""
        index = self.trajectory
        return torch.zeros(int(index.max()) + 1, dtype=values.dtype).index_add(0, index, values)

    @property
    def outcomes(self) -> torch.Tensor:
        """[m], what a trajectory earned altogether, undiscounted."""
        return self.of_trajectories(self.rewards) + self.totals((self.token_rewards * self.mask).sum(1))

    def rewards_of_tokens(self) -> torch.Tensor:
        """[n, T], the reward of the response at its last token, but for what its turns earned: an episode ends there, also when maxTokens cut it
        off."""
        earned = torch.zeros_like(self.mask) if self.turn_rewards is None else self.turn_rewards * self.mask
        rewards = self.token_rewards * self.mask + earned
        last = (self.mask * torch.arange(1, self.mask.shape[1] + 1)).argmax(1)
        rewards[torch.arange(len(last)), last] += (self.rewards - earned.sum(1)) * (self.lengths > 0)
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


def grpo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = (R_i - mean_g) / (std_g + 1e-6) for every token, over the responses to one prompt (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    The paper leaves the standard deviation open; ddof 1 is what verl, slime, ROLL, RLinf and SkyRL use. `divideByStd: false` is Dr. GRPO's
    A_i = R_i - mean_g (arXiv 2503.20783, section 3.2). `leaveOneOut`: mean and deviation of the group's other responses, undivided where
    these are equal or only one, as NeMo RL has it; a division by almost 0 would let one response outweigh the step.

    A group of one (the others' rewards failed) has advantage 0: there is nothing to compare with, and the raw reward in its place would
    reinforce the response by where the reward's zero happens to lie.
    """
    return _of_outcomes(episodes, lambda rewards: relative(rewards, algorithm.group))


def rloo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - mean of the others' = k / (k - 1) (R_i - mean_g), for every token (arXiv 2402.14740). A group of one has no others: 0."""
    return _of_outcomes(episodes, lambda r: (r - r.mean()) * (len(r) / max(1, len(r) - 1)))


def opo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - sum_j(l_j R_j) / sum_j(l_j) over the group, l the lengths, for every token (arXiv 2505.23585).

    The baseline of least variance when the squared norm of a response's score grows with its length. A group of one is its own baseline: 0.
    """

    def against_weighted_mean(pairs: torch.Tensor) -> torch.Tensor:
        rewards, lengths = pairs.unbind(1)
        return rewards - (rewards * lengths).sum() / lengths.sum().clamp(min=1)

    pairs = torch.stack((episodes.outcomes, episodes.totals(episodes.lengths)), dim=1)
    return _compared(episodes, pairs, against_weighted_mean)


def reinforce(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = whitened G_t, G_t = r_t + gamma G_t+1 (REINFORCE++, arXiv 2501.03262, section 3).

    Returns are the advantages of a value function that is 0. Whitening takes the step's mean for the baseline.
    """
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, algorithm.gamma, algorithm.gamma)
    return Advantages(whiten(returns, episodes.mask))


def reinforce_with_baseline(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = whitened (R_i - mean_g), for every token (arXiv 2501.03262, the REINFORCE++-baseline variant).

    A group of one is its own mean: 0 before whitening.
    """
    centred = _of_outcomes(episodes, lambda rewards: rewards - rewards.mean())
    return Advantages(whiten(centred.advantages, episodes.mask))


def remax(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = r_t + ... + r_T - b, b the reward of the prompt's greedy response (arXiv 2310.10505, algorithm 1).

    Raises ValueError when the episodes have no baselines.
    """
    if episodes.baselines is None:
        raise ValueError("remax needs the rewards of the greedy responses")
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, gamma=1.0, decay=1.0)
    return Advantages(returns - episodes.spread(episodes.baselines))


def gae(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = d_t + gamma lambda A_t+1 with d_t = r_t + gamma V_t+1 - V_t, then whitened over the step (arXiv 1506.02438, equation 16).

    Returns for the critic are A_t + V_t, before whitening. After the last token V is 0, also where maxTokens cut the response off: the
    length is part of the task and the reward judges what was written, so that there is no future to bootstrap.

    Raises ValueError when the episodes have no values.
    """
    if episodes.values is None:
        raise ValueError("gae needs the values of a critic")
    values = episodes.values * episodes.mask
    decay = algorithm.gamma * algorithm.gae_lambda
    advantages = accumulate(episodes.rewards_of_tokens(), values, episodes.mask, algorithm.gamma, decay)
    return Advantages(whiten(advantages, episodes.mask), returns=advantages + values)


Estimator = Callable[[Episodes, AlgorithmSpec], Advantages]

ADVANTAGES: dict[str, Estimator] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce++": reinforce,
    "reinforce++-baseline": reinforce_with_baseline,
    "gae": gae,
    "opo": opo,
    "remax": remax,
}
"""By their name in spec.algorithm.advantage."""
READ_REWARD_TIMING = frozenset({"gae", "reinforce++", "remax", "python"})
"""Those for which it may matter when in a trajectory a reward was earned."""


def estimate(episodes: Episodes, algorithm: AlgorithmSpec, estimator: Estimator) -> Advantages:
    """By the estimator of spec.algorithm.advantage, with rewards and baselines within rewardClip, and advantages within advantageClip of 0. Returns
    have no bound."""
    bounded = replace(
        episodes,
        rewards=_bounded(episodes.rewards, algorithm.reward_clip),
        baselines=None if episodes.baselines is None else _bounded(episodes.baselines, algorithm.reward_clip),
    )
    found = estimator(bounded, algorithm)
    advantages = found.advantages
    if episodes.own_rewards is not None:
        advantages = advantages + episodes.own_rewards * episodes.mask
    return replace(found, advantages=_bounded(advantages, algorithm.advantage_clip))


def _bounded(values: torch.Tensor, bound: float | None) -> torch.Tensor:
    return values if bound is None else values.clamp(-bound, bound)


def relative(rewards: torch.Tensor, group: Group) -> torch.Tensor:
    """`grpo` of the responses of one group: [k] -> [k]."""
    if len(rewards) == 1:
        return torch.zeros_like(rewards)
    if group.leave_one_out:
        return _left_out(rewards, group.divide_by_std)
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + STD_EPSILON) if group.divide_by_std else centred


def _left_out(rewards: torch.Tensor, divide: bool) -> torch.Tensor:
    count = len(rewards)
    others = rewards.repeat(count, 1)[~torch.eye(count, dtype=torch.bool)].view(count, count - 1)
    centred = rewards - others.mean(1)
    if not divide or count == 2:
        return centred
    std = others.std(1)
    return centred / torch.where(std > STD_EPSILON, std + STD_EPSILON, 1.0)


def _of_outcomes(episodes: Episodes, function: Callable[[torch.Tensor], torch.Tensor]) -> Advantages:
    """One number per trajectory, from the outcomes of its group."""
    return _compared(episodes, episodes.outcomes, function)


def _compared(episodes: Episodes, values: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Advantages:
    """One number per trajectory for all its branches, from `values` [m, ...] of its group."""
    found = by_group(values, episodes.of_trajectories(episodes.groups), function)
    return Advantages(episodes.spread(found[episodes.trajectory]))


def by_group(
    values: torch.Tensor, groups: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply `function` to the rows of `values` [n, ...] of each group alone; it gives one number [k] per row. Returns [n]."""
    result = torch.zeros(len(values), dtype=values.dtype)
    for group in groups.unique():
        members = groups == group
        result[members] = function(values[members])
    return result


def accumulate(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, decay: float
) -> torch.Tensor:
    """A_t = d_t + decay A_t+1, d_t = r_t + gamma V_t+1 - V_t, from the last token back. A token that the policy did not choose is no step: what
    comes after it passes through unchanged.

    Args:
        rewards, values, mask: [n, T]

    Returns: [n, T]
    """
    # transposed, so that a token of all responses lies together
    rewards, values, chosen = rewards.T.contiguous(), values.T.contiguous(), mask.T > 0
    following, advantage = torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    result = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        step = rewards[t] + gamma * following - values[t]
        advantage = torch.where(chosen[t], step + decay * advantage, advantage)
        following = torch.where(chosen[t], values[t], following)
        result[t] = advantage
    return result.T * mask


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(x - mean) / sqrt(var + 1e-8) over all tokens of the step, var with ddof 1 (PPO's customary normalisation; verl's masked_whiten).

    With fewer than two tokens the result is 0.

    Args:
        values, mask: [n, T]

    Returns: [n, T], zero where the mask is
    """
    count = mask.sum()
    centred = (values - (values * mask).sum() / count.clamp(min=1)) * mask
    return centred * ((centred**2).sum() / (count - 1).clamp(min=1) + VARIANCE_EPSILON).rsqrt()
