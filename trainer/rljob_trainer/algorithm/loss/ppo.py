"""The clipped surrogate of every token's own probability ratio."""

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.loss.surrogate import PolicyLoss, surrogate
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns

LARGEST_LOG_RATIO = 20.0
"""exp of more is useless as a ratio and near overflow in its square."""


def ppo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """The surrogate of r_t = policy / old policy of a token (PPO, arXiv 1707.06347, equation 7)."""
    log_ratio = tokens.log_probs - tokens.old_log_probs
    return surrogate(log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), tokens.advantages, clip)
