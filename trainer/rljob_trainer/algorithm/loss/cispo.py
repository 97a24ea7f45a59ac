"""Clipped importance sampling: the weight is clipped, the gradient is not."""

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.loss.ppo import LARGEST_LOG_RATIO
from rljob_trainer.algorithm.loss.surrogate import PolicyLoss
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns


def cispo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """L = -sg(clip(r, 1 - low, 1 + high)) A log policy (CISPO, MiniMax-M1, arXiv 2506.13585, equations 4 and 5); sg stops gradients.

    Every token keeps a gradient, rare ones that a clip would silence included. `low` of 1 or more is no lower bound, as in the paper.
    """
    ratio = (tokens.log_probs.detach() - tokens.old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    return PolicyLoss(-weight * tokens.advantages * tokens.log_probs, ratio, (weight != ratio).to(ratio.dtype))
