"""KL divergence from the reference policy: single-sample estimators, the penalty as a reward, and the controller of its coefficient."""

from collections.abc import Callable

import torch

from rljob_api.spec.algorithm import AdaptiveKL

LARGEST_DIFFERENCE = 20.0
"""Bound of the log ratio in k3, so that exp does not overflow."""
LARGEST_K3 = 10.0
"""Bound of k3, as in verl."""
LARGEST_ERROR = 0.2
"""Bound of the relative error in `adapt`."""


def k1(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """log policy - log reference, [t]: an unbiased estimate of KL(policy || reference), of either sign. As a loss its expected gradient is 0."""
    return log_probs - reference_log_probs


def k2(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """(log policy - log reference)^2 / 2, [t]: biased as an estimate, but as a loss its expected gradient is that of KL(policy || reference)."""
    return (log_probs - reference_log_probs) ** 2 / 2


def k3(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = log reference - log policy: unbiased for KL(policy || reference), never negative, low variance.

    Schulman, joschu.net/blog/kl-approx; GRPO, arXiv 2402.03300, equation 4. As a loss its expected gradient is that of
    KL(reference || policy), the other direction, as in GRPO. It is bounded by 10, as in verl (`kl_penalty_forward`,
    trainer/ppo/core_algos.py): without a bound, one token with d = 15 gives 3.3e6 and dominates the clipped gradient of its batch. Beyond the bound,
    for d > 2.6 or d < -11, the gradient is 0.

    Args:
        log_probs, reference_log_probs: [t]

    Returns: [t]
    """
    d = (reference_log_probs - log_probs).clamp(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
    return (d.exp() - d - 1).clamp(max=LARGEST_K3)


LEAST_REST = 1e-6
"""Lower bound of the probability of all other tokens, about the resolution of 1 - p in float32."""


def top_k_kl(log_probs: torch.Tensor, teacher_log_probs: torch.Tensor) -> torch.Tensor:
    """KL(policy || teacher) over K + 1 events: each of K tokens, and any other token.

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
"""[name in spec.algorithm.kl.estimator] -> estimator."""


def token_rewards(
    estimator: str, coefficient: float, old_log_probs: torch.Tensor, reference_log_probs: torch.Tensor
) -> torch.Tensor:
    """-coefficient * KL per token, of any shape: what `kl.where: reward` adds to rewards of tokens (InstructGPT, arXiv 2203.02155, equation 2)."""
    return -coefficient * ESTIMATORS[estimator](old_log_probs, reference_log_probs)


def adapt(coefficient: float, kl: float, samples: int, adaptive: AdaptiveKL) -> float:
    """The coefficient of the next step: coefficient x (1 + e n / horizon), e = kl / target - 1 within +-0.2 (arXiv 1909.08593, section 2.2).

    n is at most the horizon, so that one step changes the coefficient by at most 20 % and never its sign.

    Args:
        kl: mean per response token of this step
        samples: number of samples of this step
    """
    error = min(max(kl / adaptive.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return coefficient * (1 + error * min(1.0, samples / adaptive.horizon))
