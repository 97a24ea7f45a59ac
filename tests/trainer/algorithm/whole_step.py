"""Advantages of a whole step at once, padded to its longest response [n, T]: the plainest form of what depends on time or is whitened."""

import torch

from rljob_trainer.algorithm.episodes import Episodes


def padded(step: Episodes, values: torch.Tensor) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(values.split(step.counts.tolist())), batch_first=True)


def flat(step: Episodes, values: torch.Tensor) -> torch.Tensor:
    return torch.cat([row[:n] for row, n in zip(values, step.counts.tolist(), strict=True)])


def differences(step: Episodes, values: torch.Tensor, gamma: float, decay: float) -> torch.Tensor:
    """[n, T], A_t = d_t + decay A_t+1, d_t = r_t + gamma V_t+1 - V_t, one token of all responses after another."""
    rewards, mask, values = (padded(step, x) for x in (step.rewards_of_tokens(), step.mask, values * step.mask))
    following, advantage, result = (torch.zeros_like(x) for x in (rewards[:, 0], rewards[:, 0], rewards))
    for t in reversed(range(rewards.shape[1])):
        now = rewards[:, t] + gamma * following - values[:, t]
        advantage = torch.where(mask[:, t] > 0, now + decay * advantage, advantage)
        following = torch.where(mask[:, t] > 0, values[:, t], following)
        result[:, t] = advantage
    return result * mask


def whitened(step: Episodes, values: torch.Tensor) -> torch.Tensor:
    """[n, T]"""
    mask = padded(step, step.mask)
    count = mask.sum()
    centred = (values - (values * mask).sum() / count.clamp(min=1)) * mask
    return centred * ((centred**2).sum() / (count - 1).clamp(min=1) + 1e-8).rsqrt()
