"""The known name that a wrong one probably stands for, at a bounded cost: difflib compares a name with all known ones letter by letter."""

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

LONGEST = 100
"""Longest name, in characters, that is compared: no known one is as long."""
MOST = 10
"""Names that are compared in one validation. Whoever has more wrong names has another problem than their spelling."""


@dataclass(slots=True)
class _Budget:
    left: int


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited(most: int = MOST) -> Iterator[None]:
    """Inside, `nearest` compares at most so many names, and answers None to all further ones."""
    token = _budget.set(_Budget(most))
    try:
        yield
    finally:
        _budget.reset(token)


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar, by difflib's ratio; None: none is similar enough, or nobody has looked."""
    budget = _budget.get()
    if len(name) > LONGEST or not known or (budget and not budget.left):
        return None
    if budget:
        budget.left -= 1
    return max(_ratios(name, known, cutoff), default=(0.0, None))[1]


def _ratios(name: str, known: Collection[str], cutoff: float) -> Iterator[tuple[float, str]]:
    """The candidates that may be the most similar, with their ratios. An upper bound of a ratio costs little, so the candidates are taken in the
    order of their bounds, up to the first that cannot win."""
    matcher, bounds, best = difflib.SequenceMatcher(b=name), list[tuple[float, str]](), cutoff
    for candidate in known:
        matcher.set_seq1(candidate)
        if matcher.real_quick_ratio() >= cutoff and (bound := matcher.quick_ratio()) >= cutoff:
            bounds.append((bound, candidate))
    for bound, candidate in sorted(bounds, reverse=True):
        if bound < best:
            return
        matcher.set_seq1(candidate)
        if (ratio := matcher.ratio()) >= best:
            best = ratio
            yield ratio, candidate
