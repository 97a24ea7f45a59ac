"""Per-token losses of the policy (by their name in spec.algorithm.loss) and of the critic, and the weights by which they are summed.

To add a policy loss: write a function of (TokenColumns, Sequences, Clip), put it into LOSSES, and name it in spec.algorithm.loss
(operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns


def token_weights(lengths: Sequence[int], aggregation: str, longest: int = 0) -> list[float]:
    """The weight of each response's tokens. The loss of a mini-batch is sum(weight x loss) over all of its tokens, however it is split.

    Weights are computed from the whole mini-batch. Tokens that are filtered or rejected later contribute no loss, but do not change the weights: a
    shrinking denominator would raise the effective learning rate of the remaining ones.

    - tokenMean: 1 / sum_j l_j (DAPO, arXiv 2503.14476, section 3.3)
    - sequenceMeanTokenMean: 1 / (n l_i) (GRPO, arXiv 2402.03300, equation 3; GSPO, arXiv 2507.18071, equation 5)
    - sequenceMeanTokenSum: 1 / n (the policy gradient of whole responses; REINFORCE)
    - sequenceMeanTokenSumNorm: 1 / (n longest) (Dr. GRPO, arXiv 2503.20783, section 3.2)

    Args:
        lengths: [n], response tokens of each response of the mini-batch, over all ranks
        aggregation: spec.algorithm.aggregation
        longest: maxTokens, for sequenceMeanTokenSumNorm

    Returns: [n]; 0 for a response without tokens
    """
    count, total = len(lengths), sum(lengths)
    denominators = {
        "tokenMean": [total] * count,
        "sequenceMeanTokenMean": [count * n for n in lengths],
        "sequenceMeanTokenSum": [count] * count,
        "sequenceMeanTokenSumNorm": [count * longest] * count,
    }[aggregation]
    return [1 / d if n else 0.0 for n, d in zip(lengths, denominators, strict=True)]


def of_branches(
    weights: Callable[[Sequence[int]], Sequence[float]],
    lengths: npt.NDArray[np.int32],
    trajectories: npt.NDArray[np.int64],
) -> list[float]:
    """Apply `weights` to whole trajectories when rows may be branches of them, so that a trajectory does not count more for having many branches.

    Args:
        weights: tokens of each trajectory -> weight of its tokens
        lengths: [n], tokens of each row
        trajectories: [n], equal for branches of one trajectory

    Returns: [n]
    """
    _, index = np.unique(trajectories, return_inverse=True)
    of_trajectories = weights(np.bincount(index, lengths).astype(int).tolist())
    return [of_trajectories[i] for i in index]


LARGEST_LOG_RATIO = 20.0
"""Bound of a token's log ratio: a larger ratio is meaningless, and its square would overflow float32."""
LARGEST_MEAN_LOG_RATIO = 10.0
"""Bound of a response's mean log ratio, as in verl."""


class PolicyLoss(NamedTuple):
    """The loss of each token, and metrics. All [t]."""

    loss: torch.Tensor
    """To be minimized."""
    ratio: torch.Tensor
    clipped: torch.Tensor
    """1.0 where clipping takes effect."""


def surrogate(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> PolicyLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(log_ratio) (PPO, arXiv 1707.06347, equation 7).

    high > low is the clip-higher of DAPO (arXiv 2503.14476, section 3.1). With `dual` and A < 0, L = min(L, -A dual) (arXiv 1912.09729,
    equation 5), so that a token with a negative advantage that became much more likely does not outweigh all others. Where clipping takes effect, the
    gradient is 0.

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


def ppo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """`surrogate` of the per-token ratio r_t = policy_t / old policy_t (PPO, arXiv 1707.06347, equation 7)."""
    log_ratio = tokens.log_probs - tokens.old_log_probs
    return surrogate(log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), tokens.advantages, clip)


def gspo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """`surrogate` of s_t = sg(s_i) policy_t / sg(policy_t), s_i = exp(mean over the response of log policy - log old policy).

    GSPO, arXiv 2507.18071, equations 7 and 13, 14: the GSPO-token form, equal in value and gradient to the sequence form when all tokens of a
    response have the same advantage. sg stops gradients; log s is clamped to +-10.
    """
    fixed = tokens.log_probs.detach()
    _, mean = sequences.sum_and_mean(fixed - tokens.old_log_probs, tokens.mask)
    log_ratio = tokens.log_probs - fixed + mean
    return surrogate(log_ratio.clamp(-LARGEST_MEAN_LOG_RATIO, LARGEST_MEAN_LOG_RATIO), tokens.advantages, clip)


def cispo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """L = -sg(clip(r, 1 - low, 1 + high)) A log policy (CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5); sg stops gradients.

    Only the weight is clipped, so rare tokens that PPO's clipping would silence keep their gradient. With `low` of 1 or more there is no lower bound,
    as in the paper.
    """
    ratio = (tokens.log_probs.detach() - tokens.old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return PolicyLoss(-weight * tokens.advantages * tokens.log_probs, ratio, (weight != ratio).to(ratio.dtype))


LossFunction = Callable[[TokenColumns, Sequences, Clip], PolicyLoss]

LOSSES: dict[str, LossFunction] = {"ppo": ppo, "gspo": gspo, "cispo": cispo}
"""[name in spec.algorithm.loss] -> loss."""


class ValueLoss(NamedTuple):
    """The critic's loss of each token. All [t]."""

    loss: torch.Tensor
    clipped: torch.Tensor
    """1.0 where clipping takes effect, so that the gradient is 0."""


def value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float) -> ValueLoss:
    """L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2; without clip (0) (V - R)^2 / 2.

    The clipped value loss of OpenAI's baselines (ppo2/model.py), as in verl, TRL and OpenRLHF. Only `values` carries gradients.

    Args:
        values, old_values, returns: [t]
    """
    free = (values - returns) ** 2
    if clip == 0:
        return ValueLoss(free / 2, torch.zeros_like(free))
    bounded = (values.clamp(old_values - clip, old_values + clip) - returns) ** 2
    return ValueLoss(torch.maximum(free, bounded) / 2, (bounded > free).to(free.dtype))
