"""Values of the wrong type, and fields that there are not: rules that the schema itself holds."""

import math
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from rljob_api.type_errors import SENTENCES, TypeProblem, as_written, path_of, problems
from rljob_api.validation.fields import Location, section
from rljob_api.validation.result import Violation
from rljob_api.validation.unknown_fields import meant


def schema_violations(error: ValidationError) -> Iterator[Violation]:
    """Of a spec that could not be parsed, in the order of its fields."""
    for found in problems(error):
        yield Violation(f"spec.{found.path}" if found.path else "spec", found.value, found.rule, _fix(found))


def verbatim_violations(spec: dict[str, Any], told: set[str]) -> Iterator[Violation]:
    """What JSON cannot hold, in the parts of a spec that pass through as they are. `told`: fields that are wrong already."""
    for location, value in _leaves(spec, ()):
        field = f"spec.{path_of(location)}"
        if isinstance(value, float) and not math.isfinite(value) and field not in told:
            yield Violation(field, as_written(value), *SENTENCES["finite_number"](value, {}))


def _leaves(value: Any, location: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if not isinstance(value, dict | list):
        yield location, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, (*location, key))


def _fix(found: TypeProblem) -> str:
    known = meant(found.location) if found.kind == "extra_forbidden" else found.fix
    return known or f"see `kubectl explain {explain(found.location)}`"


def explain(location: Location) -> str:
    """What `kubectl explain` knows of it: the field, or the innermost one around it."""
    fields, _ = section(location)
    return ".".join(["rljob.spec", *fields])
