"""Values of the wrong type, and fields that there are not: rules that the schema itself holds."""

from collections.abc import Iterator

from pydantic import ValidationError

from rljob_api.type_errors import TypeProblem, problems
from rljob_api.validation.fields import Location, section
from rljob_api.validation.result import Violation
from rljob_api.validation.unknown_fields import meant


def schema_violations(error: ValidationError) -> Iterator[Violation]:
    """Of a spec that could not be parsed, in the order of its fields."""
    for found in problems(error):
        yield Violation(f"spec.{found.path}" if found.path else "spec", found.value, found.rule, _fix(found))


def _fix(found: TypeProblem) -> str:
    known = meant(found.location) if found.kind == "extra_forbidden" else found.fix
    return known or f"see `kubectl explain {explain(found.location)}`"


def explain(location: Location) -> str:
    """What `kubectl explain` knows of it: the field, or the innermost one around it."""
    fields, _ = section(location)
    return ".".join(["rljob.spec", *fields])
