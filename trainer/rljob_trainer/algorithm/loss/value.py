"""The loss of the critic."""

from typing import NamedTuple

import torch


class ValueLoss(NamedTuple):
    """All [t]."""

    loss: torch.Tensor
    clipped: torch.Tensor
    """1.0 where the clip binds: the gradient of the token is 0."""


def value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float) -> ValueLoss:
    """L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2; without clip (0) (V - R)^2 / 2.

    The clipped value loss of OpenAI's baselines (ppo2/model.py), as verl, TRL and OpenRLHF have it. Only `values` carries gradients.

    Args:
        values, old_values, returns: [t]
    """
    free = (values - returns) ** 2
    if clip == 0:
        return ValueLoss(free / 2, torch.zeros_like(free))
    bounded = (values.clamp(old_values - clip, old_values + clip) - returns) ** 2
    return ValueLoss(torch.maximum(free, bounded) / 2, (bounded > free).to(free.dtype))
