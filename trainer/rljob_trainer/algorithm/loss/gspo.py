"""Group sequence policy optimization: the ratio of the whole response."""

from rljob_api.spec.algorithm import Clip
from rljob_trainer.algorithm.loss.surrogate import PolicyLoss, surrogate
from rljob_trainer.algorithm.tokens import Sequences, TokenColumns

LARGEST_LOG_RATIO = 10.0


def gspo(tokens: TokenColumns, sequences: Sequences, clip: Clip) -> PolicyLoss:
    """The surrogate of s_t = sg(s_i) policy_t / sg(policy_t), s_i = exp(mean over the response of log policy - log old policy).

    GSPO, arXiv 2507.18071, equations 7 and 13, 14 (the GSPO-token form, equal in value and gradient to the sequence form when the
    advantage of a response is one number); sg stops gradients. log s is clamped to +-10.
    """
    fixed = tokens.log_probs.detach()
    _, mean = sequences.sum_and_mean(fixed - tokens.old_log_probs, tokens.mask)
    log_ratio = tokens.log_probs - fixed + mean
    return surrogate(log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), tokens.advantages, clip)
