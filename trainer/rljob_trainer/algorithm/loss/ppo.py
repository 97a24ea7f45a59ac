"""The clipped surrogate."""

from typing import NamedTuple

import torch

LARGEST_LOG_RATIO = 20.0
"""exp of more is useless as a ratio and near overflow in its square."""


class PolicyLoss(NamedTuple):
    loss: torch.Tensor
    """[t], to be minimised."""
    ratio: torch.Tensor
    """[t]"""
    clipped: torch.Tensor
    """[t], 1.0 where the clip binds: the gradient of the token is 0."""


def ppo(log_ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> PolicyLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(log_ratio) (PPO, arXiv 1707.06347, equation 7).

    high > low is the clip-higher of DAPO (arXiv 2503.14476, equation 10).

    Args:
        log_ratio: [t], log of new over old probability of each token
        advantages: [t]
    """
    ratio = log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    free, bounded = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    return PolicyLoss(torch.maximum(free, bounded), ratio, (bounded > free).to(ratio.dtype))
