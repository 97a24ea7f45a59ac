"""How a rehearsal is shown: texts as the model reads them, and in colour what it learns from."""

from collections.abc import Iterable, Sequence

from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.wire.trajectory import LEARNT, Segment

LEARNT_COLOUR, GIVEN_COLOUR, RESET = "\x1b[32m", "\x1b[2m", "\x1b[0m"
LEARNT_MARKS = ("«", "»")
"""Around what is learnt, where there is no colour."""
LONGEST = 2000
"""Characters of one text."""


class Screen:
    """Lines for a terminal (`colour`) or a file."""

    def __init__(self, colour: bool):
        self._colour = colour

    @property
    def legend(self) -> str:
        """What the marks of `segments` mean."""
        return self._learnt("learnt") + " and " + self._given("given")

    def segments(self, segments: Iterable[Segment], tokenizer: Tokenizer) -> str:
        """A sequence, whose learnt parts stand out."""
        return "".join(self._segment(segment, tokenizer) for segment in segments)

    def _segment(self, segment: Segment, tokenizer: Tokenizer) -> str:
        text = shortened(tokenizer.decode(segment.tokens.tolist(), skip_special_tokens=False))
        return self._learnt(text) if segment.source in LEARNT else self._given(text)

    def _learnt(self, text: str) -> str:
        return f"{LEARNT_COLOUR}{text}{RESET}" if self._colour else text.join(LEARNT_MARKS)

    def _given(self, text: str) -> str:
        return f"{GIVEN_COLOUR}{text}{RESET}" if self._colour else text


def shortened(text: str) -> str:
    """Without what a terminal would obey, and at most LONGEST characters."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    if len(shown) <= LONGEST:
        return shown
    half = LONGEST // 2
    return f"{shown[:half]} [... {len(shown) - LONGEST} characters ...] {shown[-half:]}"


def indented(text: str, by: str = "    ") -> str:
    return "\n".join(by + line for line in text.splitlines() or [""])


def extent(numbers: Sequence[int]) -> str:
    """For example `5 to 9`."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"
