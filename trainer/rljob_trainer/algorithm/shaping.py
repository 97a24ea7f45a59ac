"""Difficulty of prompts and the penalty for overlong responses. Shared by driver and ranks, so no torch here."""

from collections.abc import Sequence
from typing import Literal

from rljob_api.spec.algorithm import Difficulty, Overlong

DifficultyBand = Literal["kept", "hard", "easy"]


def difficulty_band(rewards: Sequence[float], difficulty: Difficulty) -> DifficultyBand:
    """Of a prompt with these rewards, at least one. kept: low < mean reward < high (ROLL's difficulty_mask)."""
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
