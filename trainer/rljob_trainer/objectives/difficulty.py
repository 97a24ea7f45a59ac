"""Which prompts are too hard or too easy to learn from. No torch here: the driver asks too."""

from collections.abc import Sequence
from typing import Literal

from rljob_api.spec.algorithm import Difficulty

Fit = Literal["kept", "hard", "easy"]


def fit(rewards: Sequence[float], difficulty: Difficulty) -> Fit:
    """kept: low < mean reward of the prompt's samples < high, as ROLL's difficulty_mask; at least one sample."""
    mean = sum(rewards) / len(rewards)
    return "hard" if mean <= difficulty.low else "easy" if mean >= difficulty.high else "kept"
