"""Estimators of the divergence from the reference policy, from one sample per token."""

from collections.abc import Callable

import torch

LARGEST_DIFFERENCE = 20.0
"""exp of more overflows the sums of a batch."""


def k3(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = log reference - log policy: unbiased for KL(policy || reference), never negative, low variance.

    Schulman, joschu.net/blog/kl-approx; GRPO, arXiv 2402.03300, equation 4. Differentiable in `log_probs`, and as a loss its gradient is
    that of GRPO's equation. d is clamped to +-20.

    Args:
        log_probs, reference_log_probs: [t]

    Returns: [t]
    """
    d = (reference_log_probs - log_probs).clamp(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    return d.exp() - d - 1


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k3": k3}
"""By their name in spec.algorithm.kl.estimator."""
