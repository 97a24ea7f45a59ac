"""The loss of a token: clipped surrogate, entropy bonus, divergence penalty."""

from typing import NamedTuple

import torch

from rljob_api.spec.algorithm import AlgorithmSpec
from rljob_trainer.algorithm.kl import ESTIMATORS
from rljob_trainer.algorithm.loss import LOSSES


class Terms(NamedTuple):
    """All [t]."""

    loss: torch.Tensor
    kl: torch.Tensor
    """0 without a reference."""
    ratio: torch.Tensor
    clipped: torch.Tensor


def objective(
    algorithm: AlgorithmSpec,
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    entropy: torch.Tensor,
    reference_log_probs: torch.Tensor | None,
) -> Terms:
    """policy loss - entropyCoefficient * H + kl.coefficient * KL, per token; all arguments are [t].

    Only `log_probs` and `entropy` carry gradients.
    """
    clip = algorithm.clip
    policy = LOSSES[algorithm.loss](log_probs - old_log_probs, advantages, clip.low, clip.high)
    loss = policy.loss - algorithm.entropy_coefficient * entropy
    if reference_log_probs is None:
        return Terms(loss, torch.zeros_like(loss), policy.ratio, policy.clipped)
    kl = ESTIMATORS[algorithm.kl.estimator](log_probs, reference_log_probs)
    return Terms(loss + algorithm.kl.coefficient * kl, kl, policy.ratio, policy.clipped)
