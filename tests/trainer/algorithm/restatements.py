"""The formulas once more, as loops over Python floats, written from the papers and not from the code."""

import math
import statistics
from collections.abc import Sequence

Numbers = Sequence[float]
Table = list[list[float]]

SMALL = 1e-6


def grpo(rewards: Numbers, groups: Sequence[int], divide: bool, leave_out: bool) -> list[float]:
    result = []
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        peers = [
            r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and (j != i or not leave_out)
        ]
        if groups.count(group) == 1:
            result.append(0.0)
            continue
        deviation = statistics.stdev(peers) if len(peers) > 1 else 0.0
        undivided = not divide or (leave_out and deviation < SMALL)
        result.append((reward - statistics.fmean(peers)) / (1.0 if undivided else deviation + SMALL))
    return result


def rloo(rewards: Numbers, groups: Sequence[int]) -> list[float]:
    result = []
    for i, group in enumerate(groups):
        others = [rewards[j] for j in range(len(rewards)) if groups[j] == group and j != i]
        result.append(rewards[i] - statistics.fmean(others) if others else 0.0)
    return result


def opo(rewards: Numbers, groups: Sequence[int], lengths: Numbers) -> list[float]:
    result = []
    for i, group in enumerate(groups):
        members = [j for j in range(len(rewards)) if groups[j] == group]
        total = sum(lengths[j] for j in members)
        baseline = sum(lengths[j] * rewards[j] for j in members) / total if total else 0.0
        result.append(rewards[i] - baseline)
    return result


def centred(rewards: Numbers, groups: Sequence[int]) -> list[float]:
    return [
        r - statistics.fmean(rewards[j] for j in range(len(rewards)) if groups[j] == g)
        for r, g in zip(rewards, groups, strict=True)
    ]


def whitened(values: Table, mask: Table) -> Table:
    """Over all tokens of the table."""
    chosen = [v for row, ms in zip(values, mask, strict=True) for v, m in zip(row, ms, strict=True) if m]
    if len(chosen) < 2:
        return [[0.0] * len(row) for row in values]
    mean, variance = statistics.fmean(chosen), statistics.variance(chosen)
    return [
        [(v - mean) / math.sqrt(variance + 1e-8) if m else 0.0 for v, m in zip(row, ms, strict=True)]
        for row, ms in zip(values, mask, strict=True)
    ]


def episode(reward: float, token_rewards: Numbers, mask: Numbers) -> list[tuple[int, float]]:
    """(position, reward) of the tokens that the policy chose; what follows them in between is no step of the episode."""
    steps = [(t, token_rewards[t]) for t, m in enumerate(mask) if m]
    return [*steps[:-1], (steps[-1][0], steps[-1][1] + reward)] if steps else []


def discounted(reward: float, token_rewards: Numbers, mask: Numbers, gamma: float) -> list[float]:
    """sum_k gamma^k r_t+k, by its definition."""
    steps = episode(reward, token_rewards, mask)
    result = [0.0] * len(mask)
    for i, (t, _) in enumerate(steps):
        result[t] = sum(gamma**k * r for k, (_, r) in enumerate(steps[i:]))
    return result


def gae(
    reward: float, token_rewards: Numbers, mask: Numbers, values: Numbers, gamma: float, decay: float
) -> list[float]:
    """sum_l (gamma lambda)^l delta_t+l, by its definition."""
    steps = episode(reward, token_rewards, mask)
    expected = [values[t] for t, _ in steps] + [0.0]
    deltas = [r + gamma * expected[i + 1] - expected[i] for i, (_, r) in enumerate(steps)]
    result = [0.0] * len(mask)
    for i, (t, _) in enumerate(steps):
        result[t] = sum((gamma * decay) ** k * d for k, d in enumerate(deltas[i:]))
    return result


def surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """Minus the objective, from its cases."""
    if advantage >= 0:
        return -advantage * min(ratio, 1 + high)
    loss = -advantage * max(ratio, 1 - low)
    return loss if dual is None else min(loss, -advantage * dual)


def geometric_mean_ratio(new: Numbers, old: Numbers) -> float:
    """(policy(y) / old policy(y))^(1/|y|)"""
    return math.exp((sum(new) - sum(old)) / len(new))
