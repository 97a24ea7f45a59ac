"""The policy's loss per token (policy loss with rollout correction, entropy bonus, KL penalty, distillation), and its metrics.

For the KL divergence from the reference policy: single-sample estimators, the penalty as a reward, and the controller of its coefficient.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from rljob_api.spec.algorithm import AdaptiveKL, AlgorithmSpec, RolloutCorrection
from rljob_trainer.algorithm.losses import LARGEST_LOG_RATIO, LossFunction
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns

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


class Mismatch(NamedTuple):
    """Difference between the rollouts and the trainer: d = log old policy - log rollout, of the same tokens. All [t], without gradients."""

    difference: torch.Tensor
    """|d|"""
    kl: torch.Tensor
    """exp(d) - d - 1, the k3 estimate of KL(rollout || old policy), since the rollouts sampled the tokens."""
    ratio: torch.Tensor
    """exp(d)"""


class Correction(NamedTuple):
    """Rollout correction of each token. All [t], without gradients."""

    weight: torch.Tensor
    """Factor of the policy loss."""
    rejected: torch.Tensor
    """1.0 where a token is excluded from the whole loss."""


@torch.no_grad()
def mismatch(tokens: TokenColumns) -> Mismatch:
    d = tokens.old_log_probs - tokens.rollout_log_probs
    bounded = d.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return Mismatch(d.abs(), bounded.exp() - bounded - 1, bounded.exp())


@torch.no_grad()
def correct(spec: RolloutCorrection, tokens: TokenColumns, sequences: Sequences) -> Correction:
    """Truncated importance sampling: min(exp(d), cap), d of a token or summed over its response (IMPALA, arXiv 1802.01561,
    equation 1; verl's trainer/ppo/rollout_corr_helper.py).

    With `bypass` the weight is 1, since the policy loss already uses the ratio to the rollouts. Tokens are rejected by exp(d) of a token, or by the
    geometric mean exp(mean d) of its response, if that is outside of [low, high].
    """
    d = tokens.old_log_probs - tokens.rollout_log_probs
    weight, rejected = torch.ones_like(d), torch.zeros_like(d)
    if spec.importance_sampling not in (None, "none") and not spec.bypass:
        total = d if spec.importance_sampling == "token" else sequences.sum_and_mean(d, tokens.mask)[0]
        weight = _ratio(total).clamp(max=spec.cap)
    if spec.reject:
        ratio = _ratio(d if spec.reject.level == "token" else sequences.sum_and_mean(d, tokens.mask)[1])
        rejected = ((ratio < spec.reject.low) | (ratio > spec.reject.high)).to(d.dtype)
    return Correction(weight, rejected)


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


class Terms(NamedTuple):
    """Loss and metrics of each token. All [t]; 0 outside the mask. Only `loss` carries gradients."""

    loss: torch.Tensor
    """To be multiplied by the weights of losses.token_weights and summed. 0 where rejected."""
    policy: torch.Tensor
    """The policy loss within `loss`."""
    kl: torch.Tensor
    """k3 estimate of the KL from the reference, whichever estimator the penalty uses; 0 without a reference."""
    teacher_kl: torch.Tensor
    """KL from the teacher: over its likeliest tokens with `distillation.topK`, otherwise the k1 estimate; 0 without a teacher."""
    approx_kl: torch.Tensor
    """k3 estimate of KL(old policy || policy)."""
    entropy: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor
    weight: torch.Tensor
    """Importance weight of the rollout correction."""
    rejected: torch.Tensor
    difference: torch.Tensor
    """|log old policy - log rollout|"""
    mismatch_kl: torch.Tensor
    mismatch_ratio: torch.Tensor
    mismatch_square: torch.Tensor
    """mismatch_ratio squared, for the effective sample size."""


def policy_terms(
    algorithm: AlgorithmSpec,
    loss_function: LossFunction,
    kl_coefficient: float,
    tokens: TokenColumns,
    sequences: Sequences,
) -> Terms:
    """The loss of each token of a micro-batch,

        correction weight x policy loss - entropyCoefficient x entropy + kl_coefficient x KL + distillation.coefficient x teacher KL

    with the KL penalty if `kl.where` is loss, and the last term if `distillation.where` is loss: k2, or with `topK` the KL over the teacher's
    likeliest tokens. With `rolloutCorrection.bypass` the rollouts' log-probabilities replace the old ones.
    """
    correction, differing = correct(algorithm.rollout_correction, tokens, sequences), mismatch(tokens)
    if algorithm.rollout_correction.bypass:
        tokens = tokens._replace(old_log_probs=tokens.rollout_log_probs)
    policy = loss_function(tokens, sequences, algorithm.clip)
    corrected = correction.weight * policy.loss
    loss = corrected - algorithm.entropy_coefficient * tokens.entropy + kl_coefficient * _penalty(algorithm, tokens)
    loss = loss + _distillation(algorithm, tokens)
    kept = 1 - correction.rejected
    columns = Terms(
        loss=loss * kept,
        policy=corrected.detach() * kept,
        kl=_divergence(tokens),
        teacher_kl=_teacher_divergence(tokens),
        approx_kl=k3(tokens.old_log_probs, tokens.log_probs.detach()),
        entropy=tokens.entropy.detach(),
        ratio=policy.ratio.detach(),
        clipped=policy.clipped,
        weight=correction.weight,
        rejected=correction.rejected,
        difference=differing.difference,
        mismatch_kl=differing.kl,
        mismatch_ratio=differing.ratio,
        mismatch_square=differing.ratio**2,
    )
    return Terms(*(column * tokens.mask for column in columns))


def _penalty(algorithm: AlgorithmSpec, tokens: TokenColumns) -> torch.Tensor:
    if tokens.reference_log_probs is None or algorithm.kl.where == "reward":
        return torch.zeros_like(tokens.log_probs)
    return ESTIMATORS[algorithm.kl.estimator](tokens.log_probs, tokens.reference_log_probs)


def _distillation(algorithm: AlgorithmSpec, tokens: TokenColumns) -> torch.Tensor:
    distillation = algorithm.distillation
    if tokens.teacher_log_probs is None or distillation is None or distillation.where == "reward":
        return torch.zeros_like(tokens.log_probs)
    if tokens.candidates is not None and tokens.teacher_candidates is not None:
        return distillation.coefficient * top_k_kl(tokens.candidates, tokens.teacher_candidates)
    return distillation.coefficient * k2(tokens.log_probs, tokens.teacher_log_probs)


def _teacher_divergence(tokens: TokenColumns) -> torch.Tensor:
    if tokens.teacher_log_probs is None:
        return torch.zeros_like(tokens.entropy)
    if tokens.candidates is not None and tokens.teacher_candidates is not None:
        return top_k_kl(tokens.candidates.detach(), tokens.teacher_candidates)
    return k1(tokens.log_probs.detach(), tokens.teacher_log_probs)


def _divergence(tokens: TokenColumns) -> torch.Tensor:
    if tokens.reference_log_probs is None:
        return torch.zeros_like(tokens.entropy)
    return k3(tokens.log_probs.detach(), tokens.reference_log_probs)
