"""Losses of single tokens: the policy's, by their name in spec.algorithm.loss, and the critic's; and how many tokens' losses become one number.

To add a policy loss: write a function of (TokenColumns, Sequences, Clip), put it into LOSSES, and name it in spec.algorithm.loss
(operator/rljob_api/spec/algorithm.py).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rljob_api.spec.algorithm import Clip
from rljob_trainer.objectives.tokens import Sequences, TokenColumns


def token_weights(lengths: Sequence[int], aggregation: str, longest: int = 0) -> list[float]:
    """The weight of every response token of each response: the loss of a mini-batch is sum(weight x loss) over its tokens, in any cut.

    Weights are made from the whole mini-batch, once. What is filtered or rejected later gives no loss but leaves them as they are: a
    denominator that shrinks would raise the learning rate of what stays.

    - tokenMean: 1 / sum_j l_j (DAPO, arXiv 2503.14476, section 3.3)
    - sequenceMeanTokenMean: 1 / (n l_i) (GRPO, arXiv 2402.03300, equation 3; GSPO, arXiv 2507.18071, equation 5)
    - sequenceMeanTokenSum: 1 / n (the policy gradient of whole responses; REINFORCE)
    - sequenceMeanTokenSumNorm: 1 / (n longest) (Dr. GRPO, arXiv 2503.20783, section 3.2)

    Args:
        lengths: [n], response tokens of all responses of the mini-batch, over all ranks
        aggregation: of spec.algorithm
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
    """`weights` of whole trajectories, for rows that may be branches of them: many branches do not make a trajectory count more.

    Args:
        lengths: [n], of each row
        trajectories: [n], equal where rows are branches of one trajectory

    Returns: [n]
    """
    _, index = np.unique(trajectories, return_inverse=True)
    found = weights(np.bincount(index, lengths).astype(int).tolist())
    return [found[i] for i in index]


LARGEST_LOG_RATIO = 20.0
"""Of a token: exp of more is useless as a ratio and near overflow in its square."""
LARGEST_MEAN_LOG_RATIO = 10.0
"""Of a response's mean (verl clamps it so)."""


class PolicyLoss(NamedTuple):
    """All [t]."""

    loss: torch.Tensor
    """To be minimised."""
    ratio: torch.Tensor
    clipped: torch.Tensor
    """1.0 where the clip binds."""


def surrogate(log_ratio: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> PolicyLoss:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(log_ratio) (PPO, arXiv 1707.06347, equation 7).

    high > low is the clip-higher of DAPO (arXiv 2503.14476, section 3.1). With `dual` and A < 0, L = min(L, -A dual) (arXiv 1912.09729,
    equation 5): a punished token that became much likelier no longer outweighs all others. Where a clip binds the gradient is 0.

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
    """The surrogate of r_t = policy / old policy of a token (PPO, arXiv 1707.06347, equation 7)."""
    log_ratio = tokens.log_probs - tokens.old_log_probs
    return surrogate(log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), tokens.advantages, clip)


def gspo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """The surrogate of s_t = sg(s_i) policy_t / sg(policy_t), s_i = exp(mean over the response of log policy - log old policy).

    GSPO, arXiv 2507.18071, equations 7 and 13, 14 (the GSPO-token form, equal in value and gradient to the sequence form when the
    advantage of a response is one number); sg stops gradients. log s is clamped to +-10.
    """
    fixed = tokens.log_probs.detach()
    _, mean = sequences.sum_and_mean(fixed - tokens.old_log_probs, tokens.mask)
    log_ratio = tokens.log_probs - fixed + mean
    return surrogate(log_ratio.clamp(-LARGEST_MEAN_LOG_RATIO, LARGEST_MEAN_LOG_RATIO), tokens.advantages, clip)


def cispo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """L = -sg(clip(r, 1 - low, 1 + high)) A log policy (CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5); sg stops gradients.

    The weight is clipped, the gradient is not: rare tokens that a clip would silence keep theirs. `low` of 1 or more is no lower bound,
    as in the paper.
    """
    ratio = (tokens.log_probs.detach() - tokens.old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return PolicyLoss(-weight * tokens.advantages * tokens.log_probs, ratio, (weight != ratio).to(ratio.dtype))


LossFunction = Callable[[TokenColumns, Sequences, Clip], PolicyLoss]

LOSSES: dict[str, LossFunction] = {"ppo": ppo, "gspo": gspo, "cispo": cispo}
"""By their name in spec.algorithm.loss."""


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
