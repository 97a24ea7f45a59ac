"""Fills defaults into the fields that a raw object leaves open, and notes which of them were taken."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rljob_api.type_errors import path_of

Location = tuple[str | int, ...]
"""Keys and indices from the root of the object."""
CLAIMS = ("name", "mountPath")
"""Fields that identify an entry of a list: a default is left out if the job has an entry with the same value."""
SECTIONS = ("pools", "rewards")
"""Lists whose entries are sections of the spec: each entry of the object gets its own defaults."""
NAMED = ("env", "imagePullSecrets", "volumes")
"""Lists of named entries: the object also gets the defaults whose names it does not use itself."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A value of a spec with defaults put in."""

    value: Any
    taken: dict[str, Any] = field(default_factory=dict)
    """The defaults that were put in, by their path in the spec."""


def merged(given: Any, default: Any, at: Location) -> Completed:
    """`given` with the defaults filled in. An empty list counts as left open, since the API server adds one where there is none. A value of another
    type than the default is kept: validation says what is wrong with it."""
    if given is None or given == []:
        return Completed(default, dict(_leaves(default, at)))
    if isinstance(given, dict) and isinstance(default, dict):
        parts = {key: merged(given.get(key), value, (*at, key)) for key, value in default.items()}
        return Completed(given | {k: p.value for k, p in parts.items()}, _all_taken(parts.values()))
    if isinstance(given, list) and isinstance(default, list):
        return _lists(given, default, at)
    return Completed(given)


def _lists(given: list[Any], default: list[Any], at: Location) -> Completed:
    if at[-1] in SECTIONS:
        parts = [merged(g, d, (*at, i)) for i, (g, d) in enumerate(zip(given, default, strict=True))]
        return Completed([part.value for part in parts], _all_taken(parts))
    if at[-1] not in NAMED:
        return Completed(given)
    added = [entry for entry in default if not any(_claimed(entry, other) for other in given)]
    return Completed([*given, *added], {path_of((*at, i)): entry for i, entry in enumerate(added, len(given))})


def _claimed(default: dict[str, Any], given: Any) -> bool:
    return isinstance(given, dict) and any(key in default and default[key] == given.get(key) for key in CLAIMS)


def _leaves(value: Any, at: Location) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        yield from ((path_of((*at, i)), entry) for i, entry in enumerate(value))
    else:
        yield path_of(at), value


def _all_taken(parts: Iterable[Completed]) -> dict[str, Any]:
    return {where: value for part in parts for where, value in part.taken.items()}
