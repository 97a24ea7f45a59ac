"""The clipped surrogate of a probability ratio, whatever the ratio is of."""

from typing import NamedTuple

import torch

from rljob_api.spec.algorithm import Clip


class PolicyLoss(NamedTuple):
    """All [t]."""

    loss: torch.Tensor
    """To be minimised."""
    ratio: torch.Tensor
    clipped: torch.Tensor
    """1.0 where the clip binds."""


def surrogate(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> PolicyLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(log_ratio) (PPO, arXiv 1707.06347, equation 7).

    high > low is the clip-higher of DAPO (arXiv 2503.14476, section 3.1). With `dual` and A < 0, L = min(L, -A dual) (arXiv 1912.09729,
    equation 5): a punished token that became much likelier no longer outweighs all others. Where a clip binds the gradient is 0.

    Args:
        log_ratio, advantages: [t]; the caller bounds log_ratio so that its exp is finite
    """
    ratio = log_ratio.exp()
    free, bounded = -advantages * ratio, -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    loss, clipped = torch.maximum(free, bounded), bounded > free
    if clip.dual is not None:
        worst = -advantages * clip.dual
        beyond = (advantages < 0) & (loss > worst)
        loss, clipped = torch.where(beyond, worst, loss), clipped | beyond
    return PolicyLoss(loss, ratio, clipped.to(ratio.dtype))
