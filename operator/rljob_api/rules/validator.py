"""All rules that can be checked without a GPU, at once. Called by `kubectl rljob plan`, the operator and the trainer."""

import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError

from rljob_api import names
from rljob_api.base import LENIENT, Undecidable
from rljob_api.nearest import limited
from rljob_api.rules import (
    algorithm,
    data,
    environments,
    evaluation,
    gangs,
    keys,
    layout,
    lora,
    pods,
    rewards,
    rollout,
    scheduling,
    servers,
    service,
    speculation,
    task,
    vision,
    volumes,
    workers,
)
from rljob_api.rules.engine import Check, Rule, ValidationResult, Violation
from rljob_api.rules.extent import extent_violations
from rljob_api.rules.fields import schema_violations, verbatim_violations, without
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec

SUBJECTS = (
    *(task, vision, lora, layout, data, rollout, environments, servers, speculation, algorithm, rewards, workers),
    *(keys, evaluation, scheduling, pods, volumes, service, gangs),
)
OBJECT_RULES = tuple(rule for subject in SUBJECTS for rule in subject.RULES if isinstance(rule, Rule))
"""Rules that the CRD has as CEL."""
FUNCTIONS = tuple(rule for subject in SUBJECTS for rule in subject.RULES if not isinstance(rule, Rule))
CHECKS: tuple[Check, ...] = (*OBJECT_RULES, *FUNCTIONS)
"""In the order in which users read what they broke."""

JOB_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""Names of jobs: a DNS label that begins with a letter, since names of children begin with the job's."""

MOST = 50
"""Violations of one spec that are reported."""


def validate(spec: dict[str, Any], name: str, model_config: dict[str, Any] | None = None) -> ValidationResult:
    """Checks the raw `spec` of a job called `name` by all rules, and with `model_config`, a Hugging Face config.json, by the rules about the model.
    A spec that cannot be parsed is checked by the rules that do not depend on what is wrong with its schema.

    The work and the result are bounded, whatever the spec is: it may not be larger than extent.py says, and MOST violations are reported."""
    if beyond := tuple(extent_violations(spec)):
        return ValidationResult(None, beyond)
    with limited():
        parsed, schema = _parse(spec)
        schema += verbatim_violations(spec, {v.field for v in schema})
        checks: list[Check] = [*CHECKS, lambda spec: model_violations(spec, model_config or {})]
        broken = (violation for check in checks for violation in _decided(check, parsed))
        found = list(islice(chain(name_violations(name), schema, broken), MOST + 1))
    return ValidationResult(None if schema else parsed, tuple(_limited(found)))


def _limited(violations: list[Violation]) -> Iterator[Violation]:
    """The first MOST, each of a bounded length, and one that says that there are more."""
    yield from (violation.shortened() for violation in violations[:MOST])
    if len(violations) > MOST:
        yield Violation("spec", "set", f"breaks more rules than the first {MOST}", "correct these first")


def _parse(spec: dict[str, Any]) -> tuple[RLJobSpec, list[Violation]]:
    """The spec, with UNREADABLE in place of what cannot be read, and the violations of its schema."""
    try:
        return RLJobSpec.model_validate(spec, by_alias=True, by_name=False), []
    except ValidationError as error:
        violations, renamed = schema_violations(error, MOST + 1)
        known = without(spec, renamed)
        readable = RLJobSpec.model_validate(known, context=LENIENT, by_alias=True, by_name=False)
        return readable, violations


def _decided(check: Check, spec: RLJobSpec) -> Iterator[Violation]:
    """What a check finds before it needs a field that cannot be read."""
    try:
        yield from check(spec)
    except Undecidable:
        return


def name_violations(name: str) -> Iterator[Violation]:
    """Labels and StatefulSets limit the names of children, which are made from the job's."""
    if len(name) > names.MAX_JOB_NAME:
        yield Violation(
            "metadata.name",
            name,
            f"has {len(name)} characters; at most {names.MAX_JOB_NAME} are allowed, because names of children are made from it",
            "choose a shorter name",
        )
    if not re.fullmatch(JOB_NAME, name):
        yield Violation(
            "metadata.name",
            name,
            "names of children are made from it: lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit",
            "rename the job",
        )
