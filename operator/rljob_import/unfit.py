"""Rules that meet a value with which they cannot compute: which key has it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from rljob_import.settings import REFUSED, Given, NotANumber, Rule, Settings, show
from rljob_import.table import Problem, Said

UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What computing with a value raises that has another type, or is out of all bounds."""


def said_by(rule: Rule, settings: Settings) -> Iterator[Said]:
    """What a rule says, up to a value that it cannot compute with, and further such values."""
    wrong: Given | None
    try:
        yield from rule(settings)
        return
    except NotANumber as error:
        wrong = settings.given.get(error.key)
        yield Problem(settings.origin(error.key), str(error))
    except UNFIT:
        wrong = _culprit(lambda these: [*rule(these)], settings)
        if wrong is None:
            raise
        yield refused(wrong.name, wrong.value)
    if wrong:
        yield from _of_other_values(rule, _without(settings, [wrong]))


def _of_other_values(rule: Rule, settings: Settings) -> Iterator[Problem]:
    """Only what is wrong with keys of the file: what else the rule says follows from the key that is left out."""
    names = {given.name for given in settings.given.values()}
    yield from (said for said in said_by(rule, settings) if isinstance(said, Problem) and said.key in names)


def unread(settings: Settings) -> dict[str, str]:
    """Sections that the job does not have; of values that no rule can compute with, none."""
    try:
        return settings.system.unread(settings)
    except UNFIT:
        if _culprit(settings.system.unread, settings) is None:
            raise
        return {}


def refused(name: str, value: Any) -> Problem:
    return Problem(name, f"{show(value)} {REFUSED}")


def _culprit(compute: Callable[[Settings], object], settings: Settings) -> Given | None:
    """The key without which it can be computed: the oddest that suffices alone, else the last of several. None: it is no key of the file."""
    given = sorted(settings.given.values(), key=_plainness)
    alone = (one for one in given if _computes(compute, settings, (one,)))
    together = (one for i, one in enumerate(given) if _computes(compute, settings, given[: i + 1]))
    return next(chain(alone, together), None)


def _computes(compute: Callable[[Settings], object], settings: Settings, without: Iterable[Given]) -> bool:
    try:
        compute(_without(settings, without))
    except NotANumber:
        return True
    except UNFIT:
        return False
    return True


def _without(settings: Settings, dropped: Iterable[Given]) -> Settings:
    names = {one.name for one in dropped}
    return replace(settings, given={k: g for k, g in settings.given.items() if g.name not in names})


def _plainness(given: Given) -> int:
    """Most failures come of a list or a mapping in place of one value, then of nothing and zero."""
    return 0 if isinstance(given.value, list | dict) else 2 if given.value else 1
