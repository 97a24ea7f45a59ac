"""The policy's loss per token (policy loss with rollout correction, entropy bonus, KL penalty, distillation), and its metrics."""

from typing import NamedTuple

import torch

from rljob_api.spec.algorithm import AlgorithmSpec, RolloutCorrection
from rljob_trainer.algorithm.kl import ESTIMATORS, k1, k2, k3, top_k_kl
from rljob_trainer.algorithm.losses import LARGEST_LOG_RATIO, LossFunction
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns


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
