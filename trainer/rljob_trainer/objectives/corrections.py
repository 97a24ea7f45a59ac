"""The difference between the policy that drew the tokens, in the rollouts' arithmetic, and the trainer's old policy: measured and corrected.

d_t = log old policy - log rollout, per token; everything here is constant: no gradients flow.
"""

from typing import NamedTuple

import torch

from rljob_api.spec.algorithm import RolloutCorrection
from rljob_trainer.objectives.tokens import Sequences, TokenColumns

LARGEST_LOG_RATIO = 20.0


class Mismatch(NamedTuple):
    """All [t]."""

    difference: torch.Tensor
    """|d|"""
    kl: torch.Tensor
    """exp(d) - d - 1: the k3 estimate of KL(rollout || old policy), as the rollouts drew the tokens."""
    ratio: torch.Tensor
    """exp(d)"""


class Correction(NamedTuple):
    """All [t]."""

    weight: torch.Tensor
    """Multiplies the policy loss."""
    rejected: torch.Tensor
    """1.0 where a token gives no loss at all."""


@torch.no_grad()
def mismatch(tokens: TokenColumns) -> Mismatch:
    d = tokens.old_log_probs - tokens.rollout_log_probs
    bounded = d.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return Mismatch(d.abs(), bounded.exp() - bounded - 1, bounded.exp())


@torch.no_grad()
def correct(spec: RolloutCorrection, tokens: TokenColumns, sequences: Sequences) -> Correction:
    """Truncated importance sampling: min(exp(d), cap), d of a token or summed over its response (IMPALA, arXiv 1802.01561,
    equation 1; verl's trainer/ppo/rollout_corr_helper.py).

    With `bypass` the weight is 1: the ratio of the loss is against the rollouts already. Rejection is by exp(d) of a token or by the
    geometric mean, exp(mean d), of its response; bounds belong to what stays.
    """
    d = tokens.old_log_probs - tokens.rollout_log_probs
    weight, rejected = torch.ones_like(d), torch.zeros_like(d)
    if spec.importance_sampling != "none" and not spec.bypass:
        total = d if spec.importance_sampling == "token" else sequences.sum_and_mean(d, tokens.mask)[0]
        weight = _ratio(total).clamp(max=spec.cap)
    if spec.reject:
        ratio = _ratio(d if spec.reject.level == "token" else sequences.sum_and_mean(d, tokens.mask)[1])
        rejected = ((ratio < spec.reject.low) | (ratio > spec.reject.high)).to(d.dtype)
    return Correction(weight, rejected)


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
