"""A configuration as rules read it: values by key, and what the command line adds."""

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_import import Options
from rljob_import.table import Field, Note, Outcome, Problem, Row, Said, same_value

MOST = 2**31 - 1
"""That an RLJob counts."""
REFUSED = "is no value that this key can have"


@dataclass(frozen=True)
class Given:
    name: str
    """As it stands in the file."""
    value: Any
    row: Row

    def field(self, path: str, value: Any) -> Field:
        return Field(path, value, self.name, (self.name,))

    def note(self, outcome: Outcome, text: str) -> Note:
        return Note(outcome, f"{self.name} = {show(self.value)}", text, (self.name,))


SettingsRule = Callable[["Settings"], Iterator[Said]]
"""What several keys say together."""


def _none_unread(_: "Settings") -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class System:
    """What `kubectl rljob import NAME` knows of one kind of configuration."""

    title: str
    rows: tuple[Row, ...]
    rules: tuple[SettingsRule, ...]
    read_from: str
    """The version of the other system whose keys and defaults the rows have."""
    unread: Callable[["Settings"], dict[str, str]] = _none_unread
    """Sections of the spec that this configuration's job does not have, and why."""


@dataclass(frozen=True)
class Configuration:
    system: System
    values: dict[str, Any]
    """Leaves by dotted path."""
    notes: list[Note] = field(default_factory=list)
    """What reading left open."""


@dataclass
class Settings:
    """`settings[key]` is the value in the file, else the system's default."""

    system: System
    options: Options
    given: dict[str, Given] = field(default_factory=dict)
    """By the row's key; those of `.*` rows by their own."""
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    looked_at: set[str] = field(default_factory=set)
    """Keys that rules have asked for; see `engine.Answer`."""

    @staticmethod
    def of(system: System, values: Mapping[str, Any], options: Options) -> "Settings":
        settings = Settings(system, options)
        for name, value in values.items():
            settings._add(name, value)
        return settings

    def __post_init__(self) -> None:
        self._rows = {row.key: row for row in self.system.rows}
        self._names = {name: row for row in self.system.rows for name in (row.key, *row.also)}
        self._defaults = {row.key: row.default for row in self.system.rows}

    def _add(self, name: str, value: Any) -> None:
        row = self._names.get(name) or self._below(name) or self._inside(name)
        if row and isinstance(row.default, bool) and value not in (True, False, None):
            self.problems.append(Problem(name, f"{value!r} must be true or false, without quotes", (name,)))
        elif row:
            inner = row.key.endswith("*") or name not in (row.key, *row.also)
            self._give(name if inner else row.key, Given(name, value, row))
        elif value in (None, {}) and self._leads(name):
            return
        elif name in self.options.allowed:
            self.notes.append(Note(Outcome.LACKING, name, "passed over, as --allow says", (name,)))
        else:
            self.problems.append(self._misplaced(name, value) or Problem(name, self._unknown(name), (name,)))

    def _give(self, key: str, given: Given) -> None:
        """Of two names of one key the last one counts, as far as it says something."""
        before = self.given.get(key)
        if before and given.value is None:
            return
        if before and before.value is not None and not same_value(before.value, given.value):
            text = f"{given.name} = {show(given.value)} is the same setting, and counts"
            self.notes.append(before.note(Outcome.CHANGED, text))
        self.given[key] = given

    def _below(self, name: str) -> Row | None:
        parts = name.split(".")
        for n in range(len(parts), -1, -1):
            row = self._rows.get(".".join([*parts[:n], "*"]))
            if row and n < len(parts) and (not row.known or parts[n] in row.known):
                return row
        return None

    def _inside(self, name: str) -> Row | None:
        """The row of a mapping that no field takes over, whatever is in it."""
        parts = name.split(".")
        rows = (self._names.get(".".join(parts[:n])) for n in range(len(parts) - 1, 0, -1))
        row = next(filter(None, rows), None)
        whole = row is not None and row.outcome is Outcome.LACKING and True not in row.neutral
        return row if whole else None

    def _leads(self, name: str) -> bool:
        """Whether other keys begin with it: nothing in their place says nothing."""
        return any(key.startswith(f"{name}.") for key in self._names)

    def _misplaced(self, name: str, value: Any) -> Problem | None:
        """A value where keys belong, or keys where a value belongs."""
        if self._leads(name):
            return Problem(name, f"{show(value)} {REFUSED}", (name,))
        parts = name.split(".")
        sections = (".".join(parts[:n]) for n in range(1, len(parts)))
        around = next((section for section in sections if section in self._names), "")
        return Problem(around, f"a mapping {REFUSED}", (around,)) if around and not self._leads(around) else None

    def _unknown(self, name: str) -> str:
        known = [*self._names, *(f"{row.key[:-1]}{key}" for row in self.system.rows for key in row.known)]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        return "unknown key" + (f"; did you mean {near[0]}?" if near else "") + f" (or --allow {name})"

    @property
    def system_keys(self) -> frozenset[str]:
        """All keys of the table."""
        return frozenset(self._rows)

    def __getitem__(self, key: str) -> Any:
        self.looked_at.add(key)
        return self.given[key].value if key in self.given else self._defaults[key]

    def __contains__(self, key: str) -> bool:
        """Whether the file gives it, and not as null."""
        self.looked_at.add(key)
        return key in self.given and self.given[key].value is not None

    def below(self, prefix: str) -> dict[str, Given]:
        """What the file gives under a `.*` row."""
        start = f"{prefix}." if prefix else ""
        given = {k: g for k, g in self.given.items() if g.row.key == f"{start}*"}
        self.looked_at.update(given)
        return {k[len(start) :]: g for k, g in given.items()}

    def unsaid(self, said: Collection[str]) -> Iterator[tuple[str, Given]]:
        """Keys that are not among the `said`, although they have another value than the default."""
        for key, given in self.given.items():
            silent = given.row.outcome or given.value == {} or same_value(given.value, given.row.default)
            if not silent and given.name not in said:
                yield key, given

    def number(self, key: str) -> float:
        """A number; where the file says null, the default. Raises NotANumber."""
        return number(key, self[key] if self[key] is not None else self._defaults[key])

    def integer(self, key: str) -> int:
        return integer(key, self.number(key))

    def positive(self, key: str) -> int:
        """A whole number above 0. Raises NotANumber."""
        value = self.integer(key)
        if value < 1:
            raise NotANumber(key, value, "is not above 0")
        return value

    def origin(self, *keys: str) -> str:
        """For the comment: names as in the file, with `default` where it has none."""
        return ", ".join(self.given[k].name if k in self else self._default(k) for k in keys)

    def _default(self, key: str) -> str:
        return f"{key} (default {show(self._defaults[key])})" if self._defaults[key] is not None else f"{key} (unset)"

    def names(self, *keys: str) -> tuple[str, ...]:
        """Those that the file gives, as they stand in it."""
        return tuple(self.given[k].name for k in keys if k in self)

    def field(self, path: str, value: Any, *keys: str, why: str = "") -> Field:
        assumed = any(k not in self and self._defaults[k] is not None for k in keys)
        return Field(path, value, self.origin(*keys) + (f": {why}" if why else ""), self.names(*keys), assumed)

    def note(self, outcome: Outcome, key: str, text: str) -> Note:
        name = self.given[key].name if key in self.given else key
        return Note(outcome, f"{name} = {show(self[key])}", text, (name,))

    def problem(self, text: str, *keys: str) -> Problem:
        return Problem(self.origin(*keys), text, self.names(*keys))

    def lacking(self, key: str, text: str) -> Note:
        return self.note(Outcome.LACKING, key, text)

    def changed(self, key: str, text: str) -> Note:
        return self.note(Outcome.CHANGED, key, text)

    def implied(self, key: str, text: str) -> Note:
        return self.note(Outcome.IMPLIED, key, text)


def number(key: str, value: Any) -> float:
    """The value, which stands at this key or below it. Raises NotANumber."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotANumber(key, value)
    return value


def integer(key: str, value: Any) -> int:
    """Likewise."""
    if number(key, value) != int(value) or abs(value) > MOST:
        raise NotANumber(key, value)
    return int(value)


class NotANumber(ValueError):
    def __init__(self, key: str, value: Any, wrong: str = "") -> None:
        super().__init__(f"{show(value)} {wrong or _wrong(value)}")
        self.key = key


def _wrong(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "is no number"
    return f"is more than {MOST}" if abs(value) > MOST else "is no whole number"


def show(value: Any) -> str:
    """As in YAML, on one line and not too long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def said_of_rows(settings: Settings) -> Iterator[Said]:
    """What rows say by themselves: fields in the table's order, then keys without one."""
    for row in settings.system.rows:
        if row.convert and settings[row.key] is not None:
            yield _converted(settings, row, row.convert)
    for given in settings.given.values():
        if given.row.outcome and not _neutral(given.value, given.row):
            yield given.note(given.row.outcome, given.row.text)


def _converted(settings: Settings, row: Row, convert: Any) -> Said:
    value = settings[row.key]
    try:
        ours = convert(value)
    except ValueError as error:
        return settings.problem(f"{show(value)} {error}", row.key)
    except (ArithmeticError, AttributeError, LookupError, TypeError):
        return settings.problem(f"{show(value)} {REFUSED}", row.key)
    if row.key not in settings:
        return Field(row.field, ours, f"default of {row.key}", assumed=True)
    name = settings.given[row.key].name
    same = ours == value and type(ours) is type(value)
    return Field(row.field, ours, name if same else f"{name} = {show(value)}", (name,))


def _neutral(value: Any, row: Row) -> bool:
    if row.outcome is Outcome.IMPLIED:
        return value is None or value == {}
    if any(same_value(value, neutral) for neutral in row.neutral):
        return True
    return value in ({}, []) and row.outcome is Outcome.LACKING
