"""Violations of the schema: values of the wrong type, missing fields, and unknown ones."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from rljob_api.base import Model
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import SENTENCES, TypeProblem, as_written, path_of, problems
from rljob_api.unreadable import UNREADABLE
from rljob_api.validation.fields import Location, is_optional, names_of, section
from rljob_api.validation.result import Violation
from rljob_api.validation.unknown_fields import Meant, meant


def schema_violations(error: ValidationError, most: int) -> tuple[list[Violation], set[str]]:
    """Violations of a spec that could not be parsed, in the order of its fields, `most` of them at most; and the fields that unknown ones probably
    stand for. A missing field that seems to be there under another name is not reported."""
    found = problems(error, most)
    unknown = {problem.location: meant(problem.location) for problem in found if problem.kind == "extra_forbidden"}
    renamed = {field for known in unknown.values() for field in known.fields}
    reported = (problem for problem in found if problem.kind != "missing" or problem.path not in renamed)
    return [_violation(problem, unknown.get(problem.location, Meant(problem.fix)).fix) for problem in reported], renamed


def wrong_values(spec: dict[str, Any]) -> list[Violation]:
    """Values of the wrong type in a spec of which parts are still missing."""
    try:
        RLJobSpec.model_validate(spec, by_alias=True, by_name=False)
    except ValidationError as error:
        return [_violation(found, found.fix) for found in problems(error) if found.kind != "missing"]
    return []


def without(spec: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """A copy of the spec in which those of `fields` that it does not have are UNREADABLE, in place of their defaults."""
    for field in fields:
        spec = _unreadable(spec, RLJobSpec, field.split("."))
    return spec


def _unreadable(given: dict[str, Any], model: type[Model], keys: list[str]) -> dict[str, Any]:
    """An optional section that is not written is unreadable as a whole: nobody knows whether it is meant. Lists stay as they are: nobody knows
    which entry is meant."""
    key, *below = keys
    value, held = given.get(key), names_of(model)[key]
    if value is None:
        value = {} if below and not is_optional(model, key) else UNREADABLE
    if below and held and isinstance(value, dict):
        value = _unreadable(value, held, below)
    return given | {key: value}


def verbatim_violations(spec: dict[str, Any], broken: set[str]) -> Iterator[Violation]:
    """What JSON cannot hold, in the parts of a spec that pass through as they are. `broken`: fields that are wrong already."""
    for location, value in _leaves(spec):
        infinite = isinstance(value, float) and not math.isfinite(value)
        if infinite and (field := f"spec.{path_of(location)}") not in broken:
            yield Violation(field, as_written(value), *SENTENCES["finite_number"](value, {}))


def _leaves(spec: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Values that are neither objects nor lists, in their order."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), spec)]
    while waiting:
        location, value = waiting.pop()
        if isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += reversed([((*location, key), below) for key, below in inner])
        else:
            yield location, value


def _violation(found: TypeProblem, fix: str) -> Violation:
    """`fix`: empty: the documentation of the field says more."""
    return Violation(
        f"spec.{found.path}", found.value, found.rule, fix or f"see `kubectl explain {explain(found.location)}`"
    )


def explain(location: Location) -> str:
    """What `kubectl explain` knows of it: the field, or the innermost one around it."""
    fields, _ = section(location)
    return ".".join(["rljob.spec", *fields])
