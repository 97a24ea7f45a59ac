"""Values from the command line that replace those of a file: `--set train.steps=500`, in Helm's syntax."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import yaml

from rljob_api.manifest.yaml_text import value_of
from rljob_api.type_errors import as_written, path_of

KEY = re.compile(r"((?:\\.|[^.\[\]\\])+)((?:\[[0-9]+\])*)(?:\.(?=.)|$)")
"""One name of a path, with the indices behind it. `\\.` is a dot of a name, as in those of labels."""
T = TypeVar("T")
FIX = "write PATH=VALUE, for example train.steps=500 or rewards[0].rule=math"


class OverrideError(ValueError):
    """An override that cannot be applied. The message is for the user."""


@dataclass(frozen=True, slots=True)
class Override:
    """One value of a spec. None removes the field."""

    text: str
    """As the user wrote it."""
    location: tuple[str | int, ...]
    """Below the spec."""
    value: Any

    @staticmethod
    def of(text: str) -> "Override":
        """`PATH=VALUE`, where the value is YAML and the path may begin with `spec.`, as in messages. Raises OverrideError."""
        path, equals, value = text.partition("=")
        location = _location(path.strip().removeprefix("spec."))
        if not equals or not location:
            raise OverrideError(f"--set {text}: is no path and value; {FIX}")
        try:
            return Override(text, location, value_of(value))
        except yaml.YAMLError as error:
            raise OverrideError(f"--set {text}: the value is not YAML: {error}") from error

    def applied(self, given: Any, depth: int = 0) -> Any:
        """A copy of `given` with the value put in. `given`: what the first `depth` keys of the path lead to, at 0 the whole spec. Raises
        OverrideError."""
        if depth == len(self.location):
            return self.value
        key = self.location[depth]
        if isinstance(key, str):
            fields = self._as(dict[str, Any](), "an object", given, depth)
            return fields | {key: self.applied(fields.get(key), depth + 1)}
        items = self._as(list[Any](), "a list", given, depth)
        if key > len(items):
            raise self._refused(depth, given, f"has {len(items)} entries; the next one is [{len(items)}]")
        return [*items[:key], self.applied(items[key] if key < len(items) else None, depth + 1), *items[key + 1 :]]

    def _as(self, empty: T, kind: str, given: Any, depth: int) -> T:
        if given is None:
            return empty
        if isinstance(given, type(empty)):
            return given
        raise self._refused(depth, given, f"is not {kind}; write the whole value of it")

    def _refused(self, depth: int, given: Any, why: str) -> OverrideError:
        where = path_of(("spec", *self.location[:depth]))
        return OverrideError(f"--set {self.text}: {where} = {as_written(given)}: {why}")


def applied(spec: dict[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """A copy of the spec with all overrides applied in their order. Raises OverrideError."""
    return reduce(lambda found, override: override.applied(found), overrides, spec)


def _location(path: str) -> tuple[str | int, ...]:
    """Keys and indices of a path; empty: it is no path."""
    parts = list(KEY.finditer(path))
    if "".join(part[0] for part in parts) != path:
        return ()
    return tuple(key for part in parts for key in (part[1].replace("\\.", "."), *map(int, re.findall(r"\d+", part[2]))))
