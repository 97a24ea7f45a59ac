"""Generalized advantage estimation."""

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.advantage.episodes import Advantages, Episodes
from rljob_trainer.algorithm.advantage.whitening import whiten


def gae(episodes: Episodes, algorithm: AlgorithmSpec) -> Advantages:
    """A_t = d_t + gamma lambda A_t+1 with d_t = r_t + gamma V_t+1 - V_t, then whitened over the step (arXiv 1506.02438, equation 16).

    Returns for the critic are A_t + V_t, before whitening. After the last token V is 0, also where maxTokens cut the response off: the
    length is part of the task and the reward judges what was written, so that there is no future to bootstrap.

    Raises ValueError when the episodes have no values.
    """
    if episodes.values is None:
        raise ValueError("gae needs the values of a critic")
    values = episodes.values * episodes.mask
    advantages = accumulate(
        episodes.rewards_of_tokens(), values, episodes.mask, algorithm.gamma, algorithm.gamma * algorithm.gae_lambda
    )
    return Advantages(whiten(advantages, episodes.mask), returns=advantages + values)


def accumulate(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, decay: float
) -> torch.Tensor:
    """From the last token back. A token that the policy did not choose is no step: what comes after it passes through unchanged.

    Args:
        rewards, values, mask: [n, T]

    Returns: [n, T]
    """
    rewards, values, chosen = (
        rewards.T.contiguous(),
        values.T.contiguous(),
        mask.T > 0,
    )  # a token of all responses lies together
    following, advantage = torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    result = torch.zeros_like(rewards)
    for t in reversed(range(len(rewards))):
        step = rewards[t] + gamma * following - values[t]
        advantage = torch.where(chosen[t], step + decay * advantage, advantage)
        following = torch.where(chosen[t], values[t], following)
        result[t] = advantage
    return result.T * mask
