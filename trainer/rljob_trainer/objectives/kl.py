"""Divergence from the reference policy: estimators from one sample per token, the penalty, and the controller of its coefficient."""

from collections.abc import Callable

import torch

from rljob_api.spec.algorithm import AdaptiveKL

LARGEST_DIFFERENCE = 20.0
"""exp of more overflows before it is bounded."""
LARGEST_K3 = 10.0
LARGEST_ERROR = 0.2


def k1(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """log policy - log reference: unbiased for KL(policy || reference), of either sign. Its expected gradient as a loss is 0."""
    return log_probs - reference_log_probs


def k2(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """(log policy - log reference)^2 / 2: biased as a number, but its expected gradient as a loss is that of KL(policy || reference)."""
    return (log_probs - reference_log_probs) ** 2 / 2


def k3(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = log reference - log policy: unbiased for KL(policy || reference), never negative, low variance.

    Schulman, joschu.net/blog/kl-approx; GRPO, arXiv 2402.03300, equation 4. As a loss its expected gradient is that of
    KL(reference || policy), the other direction; GRPO means it so. It is bounded by 10, as verl does (`kl_penalty_forward`,
    trainer/ppo/core_algos.py): unbounded, one token with d = 15 gives 3.3e6 and owns the clipped gradient of its batch. Beyond the bound,
    d > 2.6 or d < -11, the gradient is 0.

    Args:
        log_probs, reference_log_probs: [t]

    Returns: [t]
    """
    d = (reference_log_probs - log_probs).clamp(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    return (d.exp() - d - 1).clamp(max=LARGEST_K3)


LEAST_REST = 1e-6
"""Probability that all further tokens have at least: float32 knows no less of 1 - p."""


def top_k_kl(log_probs: torch.Tensor, teacher_log_probs: torch.Tensor) -> torch.Tensor:
    """KL(policy || teacher) of the event which of K tokens comes, or whether it is another one.

    sum_k p_k log(p_k / q_k) + p' log(p' / q') with p' = 1 - sum_k p_k, at least LEAST_REST. It is never negative, never above the divergence over the
    whole vocabulary, and equal to it where K is all of it (data processing inequality: Cover and Thomas, Elements of Information Theory, 2.8).

    Args:
        log_probs, teacher_log_probs: [t, K], of the same K tokens

    Returns: [t]
    """
    ours, theirs = (torch.log1p(-of.exp().sum(-1).clamp(max=1 - LEAST_REST)) for of in (log_probs, teacher_log_probs))
    named = (log_probs.exp() * (log_probs - teacher_log_probs)).sum(-1)
    return named + ours.exp() * (ours - theirs)


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""By their name in spec.algorithm.kl.estimator."""


def token_rewards(
    estimator: str, coefficient: float, old_log_probs: torch.Tensor, reference_log_probs: torch.Tensor
) -> torch.Tensor:
    """-coefficient * KL, per token and of any shape: what `kl.where: reward` adds to a token's reward (InstructGPT, arXiv 2203.02155, equation 2)."""
    return -coefficient * ESTIMATORS[estimator](old_log_probs, reference_log_probs)


def adapt(coefficient: float, kl: float, samples: int, adaptive: AdaptiveKL) -> float:
    """The coefficient of the next step: coefficient x (1 + e n / horizon), e = kl / target - 1 within +-0.2 (arXiv 1909.08593, section 2.2).

    n is at most the horizon, so that one step changes the coefficient by at most 20 % and never its sign.

    Args:
        kl: of this step, per response token
        samples: of this step
    """
    error = min(max(kl / adaptive.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return coefficient * (1 + error * min(1.0, samples / adaptive.horizon))
