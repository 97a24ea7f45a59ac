"""A row says what becomes of one key of another system's configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Outcome(str, Enum):
    """What is said of a key."""

    IMPLIED = "implied"
    """An RLJob does it anyway, or needs it not."""
    CHANGED = "changed"
    """Something else stands in its place, and why."""
    LACKING = "not expressible"
    """An RLJob cannot say it, and runs without it."""

    def __str__(self) -> str:
        return str(self.value)


Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Row:
    """One key, or with `.*` at its end all keys below it."""

    key: str
    field: str = ""
    """The field of the spec, without `spec.`; several with commas between them if a rule makes them."""
    text: str = ""
    """What a reader has to know."""
    default: Any = None
    """Of the other system."""
    convert: Convert | None = None
    """From its value to ours; raises ValueError. None: a rule reads the key."""
    outcome: Outcome | None = None
    """Of a key without a field."""
    neutral: tuple[Any, ...] = ()
    """Values that say nothing, of a key without a field."""
    also: tuple[str, ...] = ()
    """Other names of the key."""
    known: frozenset[str] = frozenset()
    """Of a key that ends in `.*`: what may stand in that place; empty: anything."""
    equals: str = ""
    """Of an implied key: the field of the spec that has its value already. Another value is reported as changed."""


def same(value: Any) -> Any:
    return value


def becomes(
    key: str, field: str, default: Any = None, convert: Convert = same, also: tuple[str, ...] = (), text: str = ""
) -> Row:
    """A key that is a field of the spec."""
    return Row(key, field, text, default, convert, also=also)


def read(key: str, field: str, default: Any = None, also: tuple[str, ...] = (), text: str = "") -> Row:
    """A key that a rule reads together with others."""
    return Row(key, field, text, default, also=also)


def implied(
    key: str, text: str = "an RLJob needs no such setting", also: tuple[str, ...] = (), equals: str = ""
) -> Row:
    """A key that needs no field."""
    return Row(key, text=text, outcome=Outcome.IMPLIED, also=also, equals=equals)


def must(key: str, value: Any, text: str, also: tuple[str, ...] = ()) -> Row:
    """A key whose one value is how an RLJob works; another one is reported."""
    return Row(key, text=text, outcome=Outcome.CHANGED, neutral=_unset(value), also=also)


def lacks(key: str, text: str, *neutral: Any, also: tuple[str, ...] = ()) -> Row:
    """A key that an RLJob cannot say, unless it has a value that says nothing: one of `neutral`, and of a switch without any, off."""
    return Row(key, text=text, outcome=Outcome.LACKING, neutral=_unset(*neutral or (False,)), also=also)


def _unset(*neutral: Any) -> tuple[Any, ...]:
    """With null, which leaves a key unset. A switch that is on unless it is set is off with null."""
    return neutral if any(value is True for value in neutral) else (None, *neutral)


def same_value(a: Any, b: Any) -> bool:
    """Equal, where true is not 1 and false is not 0."""
    return a == b and isinstance(a, bool) is isinstance(b, bool)


def verbatim(prefix: str, field: str, known: frozenset[str], text: str) -> Row:
    """Keys below `prefix` that a rule hands on as they are."""
    return Row(f"{prefix}.*" if prefix else "*", field, text, known=known)


@dataclass(frozen=True)
class Field:
    """A field of the spec, and where its value comes from."""

    path: str
    value: Any
    source: str
    """For the comment behind it."""
    keys: tuple[str, ...] = ()
    """Keys that it comes from, as they stand in the file; empty: the command line, or what the other system does in any case."""
    assumed: bool = False
    """Whether a default of the other system takes part in it."""


@dataclass(frozen=True)
class Note:
    """What is said of a key on standard error."""

    outcome: Outcome
    key: str
    """With its value, as it is shown."""
    text: str
    keys: tuple[str, ...] = ()
    """As they stand in the file."""


@dataclass(frozen=True)
class Problem:
    """Why there is no RLJob."""

    key: str
    """As it is shown."""
    text: str
    keys: tuple[str, ...] = ()
    """As they stand in the file."""


Said = Field | Note | Problem
