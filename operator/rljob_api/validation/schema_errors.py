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
from rljob_api.validation.unknown_fields import meant


def schema_violations(error: ValidationError) -> Iterator[Violation]:
    """Violations of a spec that could not be parsed, in the order of its fields. A missing field that seems to be there under another name is not
    reported."""
    renamed = misnamed(error)
    for found in problems(error):
        if found.kind != "missing" or found.path not in renamed:
            yield _violation(found)


def wrong_values(spec: dict[str, Any]) -> list[Violation]:
    """Values of the wrong type in a spec of which parts are still missing."""
    try:
        RLJobSpec.model_validate(spec, by_alias=True, by_name=False)
    except ValidationError as error:
        return [_violation(found) for found in problems(error) if found.kind != "missing"]
    return []


def misnamed(error: ValidationError) -> set[str]:
    """Fields that unknown ones probably stand for."""
    unknown = [found.location for found in problems(error) if found.kind == "extra_forbidden"]
    return {field for location in unknown for field in meant(location).fields}


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
    for location, value in _leaves(spec, ()):
        field = f"spec.{path_of(location)}"
        if isinstance(value, float) and not math.isfinite(value) and field not in broken:
            yield Violation(field, as_written(value), *SENTENCES["finite_number"](value, {}))


def _leaves(value: Any, location: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(value, dict | list):
        yield location, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*location, key))


def _violation(found: TypeProblem) -> Violation:
    return Violation(f"spec.{found.path}", found.value, found.rule, _fix(found))


def _fix(found: TypeProblem) -> str:
    known = meant(found.location).fix if found.kind == "extra_forbidden" else found.fix
    return known or f"see `kubectl explain {explain(found.location)}`"


def explain(location: Location) -> str:
    """What `kubectl explain` knows of it: the field, or the innermost one around it."""
    fields, _ = section(location)
    return ".".join(["rljob.spec", *fields])
