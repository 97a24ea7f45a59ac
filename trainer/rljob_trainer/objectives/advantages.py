"""Advantage estimators. They see the whole step, in float64, so that no estimate depends on how the step is distributed over ranks.

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
"""Added to the variance of the step in `whiten`."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """The n responses of a step, padded to the longest, of T tokens. All tensors but `groups` and `trajectories` are float64; all are on one
    device."""

    rewards: torch.Tensor
    """[n], rewards of whole responses."""
    groups: torch.Tensor
    """[n], any integers; responses to the same prompt have the same one."""
    mask: torch.Tensor
    """[n, T], 1.0 for response tokens that the policy sampled, else 0.0."""
    token_rewards: torch.Tensor
    """[n, T], additional rewards of tokens, such as -coefficient * KL, without `rewards`."""
    values: torch.Tensor | None = None
    """[n, T], the critic's estimate of the return before each token. For `gae`."""
    baselines: torch.Tensor | None = None
    """[n], reward of the prompt's greedy response. For `remax`."""

    own_rewards: torch.Tensor | None = None
    """[n, T], added to the advantage of its token after estimation, without any comparison between responses (distillation). None: no such term."""
    turn_rewards: torch.Tensor | None = None
    """[n, T], the part of `rewards` that was earned before the end of the response, at the tokens that earned it. None: all at the end."""
    trajectories: torch.Tensor | None = None
    """[n], any integers; responses that are branches of one trajectory have the same one, and share its reward. None: no branches."""

    @property
    def lengths(self) -> torch.Tensor:
        """[n], sampled tokens of each response."""
        return self.mask.sum(1)

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

    def totals(self, values: torch.Tensor) -> torch.Tensor:
        """[n] -> [m], summed over the branches of each trajectory."""
        index = self.trajectory
        return torch.zeros(int(index.max()) + 1, dtype=values.dtype).index_add(0, index, values)

    @property
    def outcomes(self) -> torch.Tensor:
        """[m], undiscounted sum of all rewards of each trajectory."""
        return self.of_trajectories(self.rewards) + self.totals((self.token_rewards * self.mask).sum(1))

    def rewards_of_tokens(self) -> torch.Tensor:
        """[n, T], rewards by token: those of tokens and turns where they were earned, and the rest of the trajectory's reward at the last token of
        each of its branches. A response that maxTokens cut off counts as ended, too."""
        rewards, rest = self.token_rewards * self.mask, self.rewards
        if self.turn_rewards is not None:
            earned = self.turn_rewards * self.mask
            rewards, rest = rewards + earned, rest - self.totals(earned.sum(1))[self.trajectory]
        last = (self.mask * torch.arange(1, self.mask.shape[1] + 1)).argmax(1)
        rewards[torch.arange(len(last)), last] += rest * (self.lengths > 0)
        return rewards

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[n] -> [n, T]: a response's value at each of its sampled tokens."""
        return values[:, None] * self.mask


@dataclass(frozen=True, slots=True)
class Advantages:
    """The result of an estimator; zero where the mask is zero."""

    advantages: torch.Tensor
    """[n, T]"""
    returns: torch.Tensor | None = None
    """[n, T], the critic's targets. Only from `gae`."""


def grpo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = (R_i - mean_g) / (std_g + 1e-6) for every token, over the responses to one prompt (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    The paper does not say which standard deviation; ddof 1 is what verl, slime, ROLL, RLinf and SkyRL use. `divideByStd: false` is Dr. GRPO's
    A_i = R_i - mean_g (arXiv 2503.20783, section 3.2). `leaveOneOut` uses mean and deviation of the group's other responses, and does not divide
    when these are equal or only one, like NeMo RL: dividing by almost 0 would let one response outweigh the step.

    A group of one (the other rewards failed) has advantage 0: there is nothing to compare with, and the raw reward would make the update depend on
    where the reward function has its zero.
    """
    return _of_outcomes(episodes, lambda rewards: relative(rewards, algorithm.group))


def rloo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - mean of the others = k / (k - 1) (R_i - mean_g), for every token (RLOO, arXiv 2402.14740). A group of one has advantage 0."""
    return _of_outcomes(episodes, lambda r: (r - r.mean()) * (len(r) / max(1, len(r) - 1)))


def opo(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = R_i - sum_j(l_j R_j) / sum_j(l_j) over the group, l the lengths, for every token (arXiv 2505.23585).

    OPO: the baseline with the least variance when the squared norm of a response's score function grows with its length. A group of one has
    advantage 0.
    """

    def against_weighted_mean(pairs: torch.Tensor) -> torch.Tensor:
        rewards, lengths = pairs.unbind(1)
        return rewards - (rewards * lengths).sum() / lengths.sum().clamp(min=1)

    pairs = torch.stack((episodes.outcomes, episodes.totals(episodes.lengths)), dim=1)
    return _compared(episodes, pairs, against_weighted_mean)


def reinforce(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = whitened G_t, G_t = r_t + gamma G_t+1 (REINFORCE++, arXiv 2501.03262, section 3).

    Returns are advantages relative to a value function that is 0; whitening uses the mean of the step as baseline.
    """
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, algorithm.gamma, algorithm.gamma)
    return Advantages(whiten(returns, episodes.mask))


def reinforce_with_baseline(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = whitened (R_i - mean_g), for every token (arXiv 2501.03262, the REINFORCE++-baseline variant).

    A group of one is 0 before whitening.
    """
    centred = _of_outcomes(episodes, lambda rewards: rewards - rewards.mean())
    return Advantages(whiten(centred.advantages, episodes.mask))


def remax(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = r_t + ... + r_T - b, b the reward of the prompt's greedy response (ReMax, arXiv 2310.10505, algorithm 1).

    Raises ValueError when the episodes have no baselines.
    """
    if episodes.baselines is None:
        raise ValueError("remax needs the rewards of the greedy responses")
    rewards = episodes.rewards_of_tokens()
    returns = accumulate(rewards, torch.zeros_like(rewards), episodes.mask, gamma=1.0, decay=1.0)
    return Advantages(returns - episodes.spread(episodes.baselines))


def gae(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = d_t + gamma lambda A_t+1 with d_t = r_t + gamma V_t+1 - V_t, then whitened over the step (arXiv 1506.02438, equation 16).

    Returns for the critic are A_t + V_t, before whitening. After the last token V is 0, even when maxTokens cut the response off: the length limit
    is part of the task, and the reward is that of the truncated response, so there is no future value to bootstrap.

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
"""[name in spec.algorithm.advantage] -> estimator."""
READ_REWARD_TIMING = frozenset({"gae", "reinforce++", "remax", "python"})
"""Estimators whose result may depend on when in a trajectory a reward was earned."""


def estimate(episodes: Episodes, algorithm: AlgorithmSpec, estimator: Estimator) -> Advantages:
    """Apply an estimator, with rewards and baselines clipped to +-rewardClip, and advantages to +-advantageClip. Returns are not clipped."""
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
    """`grpo` for one group: rewards [k] -> advantages [k]."""
    if len(rewards) == 1:
        return torch.zeros_like(rewards)
    if group.leave_one_out:
        return _leave_one_out(rewards, group.divide_by_std)
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + STD_EPSILON) if group.divide_by_std else centred


def _leave_one_out(rewards: torch.Tensor, divide: bool) -> torch.Tensor:
    """`relative` with `leaveOneOut`."""
    count = len(rewards)
    others = rewards.repeat(count, 1)[~torch.eye(count, dtype=torch.bool)].view(count, count - 1)
    centred = rewards - others.mean(1)
    if not divide or count == 2:
        return centred
    std = others.std(1)
    return centred / torch.where(std > STD_EPSILON, std + STD_EPSILON, 1.0)


def _of_outcomes(episodes: Episodes, function: Callable[[torch.Tensor], torch.Tensor]) -> Advantages:
    """Advantages that are one number per trajectory, a function of the outcomes [k] of its group."""
    return _compared(episodes, episodes.outcomes, function)


def _compared(episodes: Episodes, values: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Advantages:
    """Advantages that are one number per trajectory, a function of `values` [m, ...] of its group; the same for all of its branches."""
    found = by_group(values, episodes.of_trajectories(episodes.groups), function)
    return Advantages(episodes.spread(found[episodes.trajectory]))


def by_group(
    values: torch.Tensor, groups: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply `function`, [k, ...] -> [k], to the rows of `values` [n, ...] of each group. Returns [n]."""
    result = torch.zeros(len(values), dtype=values.dtype)
    for group in groups.unique():
        members = groups == group
        result[members] = function(values[members])
    return result


def accumulate(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, decay: float
) -> torch.Tensor:
    """A_t = d_t + decay A_t+1, d_t = r_t + gamma V_t+1 - V_t, from the last token back. Tokens that the policy did not sample are skipped: they are
    not steps of the episode.

    Args:
        rewards, values, mask: [n, T]

    Returns: [n, T]
    """
    # transposed, so that one token of all responses is contiguous
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
