"""Advantages of mean 0 and variance 1."""

import torch

EPSILON = 1e-8


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(x - mean) / sqrt(var + 1e-8) over all tokens of the step, var with ddof 1 (PPO's customary normalisation; verl's masked_whiten).

    With fewer than two tokens the result is 0.

    Args:
        values, mask: [n, T]

    Returns: [n, T], zero where the mask is
    """
    count = mask.sum()
    centred = (values - (values * mask).sum() / count.clamp(min=1)) * mask
    return centred * ((centred**2).sum() / (count - 1).clamp(min=1) + EPSILON).rsqrt()
