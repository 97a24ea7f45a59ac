"""Steps and tokens of any shape."""

from hypothesis import settings
from hypothesis import strategies as st

from rljob_trainer.algorithm.episodes import Episodes
from trainer.algorithm.cases import episodes

PROPERTY = settings(max_examples=25)
"""The same examples in every run, however slow the machine."""
QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)
"""Rewards that are equal or clearly different: what is almost equal is a case of its own."""


@st.composite
def steps(draw: st.DrawFn) -> Episodes:
    """Groups of any size, holes in the mask, responses without a token."""
    count, longest = draw(st.integers(1, 7)), draw(st.integers(1, 5))

    def rows(numbers: st.SearchStrategy[float]) -> list[list[float]]:
        return [[draw(numbers) for _ in range(longest)] for _ in range(count)]

    return episodes(
        rewards=[draw(QUARTERS) for _ in range(count)],
        groups=[draw(st.integers(0, 2)) for _ in range(count)],
        mask=rows(st.sampled_from([0.0, 1.0])),
        token_rewards=rows(QUARTERS),
        values=rows(QUARTERS),
        baselines=[draw(QUARTERS) for _ in range(count)],
    )
