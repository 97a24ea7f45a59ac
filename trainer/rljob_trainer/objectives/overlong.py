"""Soft punishment of responses that come near maxTokens. No torch here: the driver takes it from rewards."""

from rljob_api.spec.algorithm import Overlong


def overlong_penalty(length: int, max_tokens: int, overlong: Overlong) -> float:
    """What to subtract from the reward of a response of `length` tokens (DAPO, arXiv 2503.14476, equation 13).

    0 up to max_tokens - buffer, from there linearly up to `penalty` at max_tokens.
    """
    if overlong.buffer_tokens == 0:
        return 0.0
    over = length - (max_tokens - overlong.buffer_tokens)
    return overlong.penalty * min(1.0, max(0.0, over / overlong.buffer_tokens))
