"""Which prompts and responses an algorithm holds back: prompts too hard or too easy, responses too long. No torch here: the driver asks too."""

from collections.abc import Sequence
from typing import Literal

from rljob_api.spec.algorithm import Difficulty, Overlong

Fit = Literal["kept", "hard", "easy"]


def fit(rewards: Sequence[float], difficulty: Difficulty) -> Fit:
    """kept: low < mean reward of the prompt's samples < high, as ROLL's difficulty_mask; at least one sample."""
    mean = sum(rewards) / len(rewards)
    return "hard" if mean <= difficulty.low else "easy" if mean >= difficulty.high else "kept"


def overlong_penalty(length: int, max_tokens: int, overlong: Overlong) -> float:
    """What to subtract from the reward of a response of `length` tokens (DAPO, arXiv 2503.14476, equation 13).

    0 up to max_tokens - buffer, from there linearly up to `penalty` at max_tokens.
    """
    if overlong.buffer_tokens == 0:
        return 0.0
    over = length - (max_tokens - overlong.buffer_tokens)
    return overlong.penalty * min(1.0, max(0.0, over / overlong.buffer_tokens))
