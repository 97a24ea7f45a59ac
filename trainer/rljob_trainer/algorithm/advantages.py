"""Advantage estimators. They see numbers of all responses and the tokens of this rank's, in float64. What they compare over the step comes from sums
over whole responses, so that no estimate depends on how the step is distributed over ranks.

To add one: write a function of (Episodes, AlgorithmSpec) with its formula and its paper, put it into ADVANTAGES, and name it in
spec.algorithm.advantage (operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rljob_api.spec.algorithm import AlgorithmSpec, Group
from rljob_trainer.algorithm.episodes import Episodes

STD_EPSILON = 1e-6
"""Added to the standard deviation of a group, as in verl, slime and ROLL."""
VARIANCE_EPSILON = 1e-8
"""Added to the variance of the step in `whiten`."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The result of an estimator; zero where the mask is zero."""

    advantages: torch.Tensor
    """[t]"""
    returns: torch.Tensor | None = None
    """[t], the critic's targets. Only from `gae`."""


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

    pairs = torch.stack((episodes.outcomes, episodes.over_branches(episodes.lengths)), dim=1)
    return _compared(episodes, pairs, against_weighted_mean)


def reinforce(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = whitened G_t, G_t = r_t + gamma G_t+1 (REINFORCE++, arXiv 2501.03262, section 3).

    Returns are advantages relative to a value function that is 0; whitening uses the mean of the step as baseline.
    """
    rewards = episodes.rewards_of_tokens()
    returns = episodes.accumulate(rewards, torch.zeros_like(rewards), algorithm.gamma, algorithm.gamma)
    return Advantages(whiten(episodes, returns))


def reinforce_with_baseline(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_i = whitened (R_i - mean_g), for every token (arXiv 2501.03262, the REINFORCE++-baseline variant).

    A group of one is 0 before whitening.
    """
    centred = _of_outcomes(episodes, lambda rewards: rewards - rewards.mean())
    return Advantages(whiten(episodes, centred.advantages))


def remax(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = r_t + ... + r_T - b, b the reward of the prompt's greedy response (ReMax, arXiv 2310.10505, algorithm 1).

    Raises ValueError when the episodes have no baselines.
    """
    if episodes.baselines is None:
        raise ValueError("remax needs the rewards of the greedy responses")
    rewards = episodes.rewards_of_tokens()
    returns = episodes.accumulate(rewards, torch.zeros_like(rewards), gamma=1.0, decay=1.0)
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
    advantages = episodes.accumulate(episodes.rewards_of_tokens(), values, algorithm.gamma, decay)
    return Advantages(whiten(episodes, advantages), returns=advantages + values)


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
    estimated = estimator(bounded, algorithm)
    advantages = estimated.advantages
    if episodes.own_rewards is not None:
        advantages = advantages + episodes.own_rewards * episodes.mask
    return replace(estimated, advantages=_bounded(advantages, algorithm.advantage_clip))


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
    compared = by_group(values, episodes.of_trajectories(episodes.groups), function)
    return Advantages(episodes.spread(compared[episodes.trajectory]))


def by_group(
    values: torch.Tensor, groups: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply `function`, [k, ...] -> [k], to the rows of `values` [n, ...] of each group. Returns [n]."""
    result = torch.zeros(len(values), dtype=values.dtype)
    for group in groups.unique():
        members = groups == group
        result[members] = function(values[members])
    return result


def whiten(episodes: Episodes, values: torch.Tensor) -> torch.Tensor:
    """(x - mean) / sqrt(var + 1e-8) over all tokens of the step, var with ddof 1 (PPO's customary normalisation; verl's masked_whiten).

    With fewer than two tokens the result is 0.

    Args:
        values: [t]

    Returns: [t], zero where the mask is
    """
    count, mean, squares = episodes.moments(values)
    return (values - mean) * episodes.mask * (squares / (count - 1).clamp(min=1) + VARIANCE_EPSILON).rsqrt()
