"""How large a spec is. All rules are at most quadratic in that, so a spec beyond the bounds is refused before any of them looks at it."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rljob_api.rules.engine import Violation

MOST_VALUES, DEEPEST = 10_000, 40
"""Values that a spec may have, counting objects, lists and their entries; objects and lists around the innermost one. Jobs have some hundred
values and a depth of 15. Recursion in Python, and in its JSON, ends at about 1,000."""
SMALL_VALUES, SMALL_CHARACTERS = 500, 64 * 1024
"""The size up to which all rules together take a few milliseconds, however many of them are broken."""


class Extent(NamedTuple):
    """The size of a spec. Counting ends beyond the bounds."""

    values: int
    depth: int
    characters: int
    """Of all keys and texts."""

    @property
    def small(self) -> bool:
        return self.values <= SMALL_VALUES and self.characters <= SMALL_CHARACTERS and self.depth <= DEEPEST


def extent(spec: Any) -> Extent:
    """The size of a raw spec, level by level. No level beyond the bounds is looked into."""
    values, depth, characters, level = 1, 0, _characters(spec), [spec]
    while level and values <= MOST_VALUES and depth <= DEEPEST:
        around = [value for value in level if value and isinstance(value, dict | list)]
        values += sum(map(len, around))
        depth += bool(around)
        level = [inner for value in around for inner in _inside(value)] if values <= MOST_VALUES else []
        characters += sum(map(_characters, level))
    return Extent(values, depth, characters)


def _inside(value: dict[Any, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _characters(value: Any) -> int:
    """Those of a text, or of an object's keys."""
    if isinstance(value, dict):
        return sum(len(key) for key in value if isinstance(key, str))
    return len(value) if isinstance(value, str) else 0


def extent_violations(spec: Any) -> Iterator[Violation]:
    """At most one."""
    found = extent(spec)
    if found.depth > DEEPEST:
        rule = f"is nested deeper than {DEEPEST} objects and lists"
        yield Violation("spec", "set", rule, "write it with fewer levels")
    elif found.values > MOST_VALUES:
        rule = f"has more than {MOST_VALUES} values, counting the entries of all lists and objects"
        yield Violation("spec", "set", rule, "move long lists and texts into files on the job's volumes")
