"""All rules that can be checked without a GPU, at once. Called by `kubectl rljob plan`, the operator and the trainer.

All rules are at most quadratic in the size of a spec, so one beyond the bounds is refused before any of them looks at it.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from pydantic import ValidationError

from rljob_api import names
from rljob_api.base import LENIENT, Undecidable
from rljob_api.rules import (
    algorithm,
    data,
    environments,
    evaluation,
    exact,
    gangs,
    keys,
    layout,
    lora,
    pods,
    references,
    rewards,
    rollout,
    scheduling,
    servers,
    speculation,
    task,
    volumes,
)
from rljob_api.rules.engine import Check, Rule, ValidationResult, Violation
from rljob_api.rules.fields import schema_violations, verbatim_violations, without
from rljob_api.rules.model import model_violations
from rljob_api.spec import RLJobSpec
from rljob_api.text import limited

MOST_VALUES, DEEPEST = 10_000, 40
"""Values that a spec may have, counting objects, lists and their entries; objects and lists around the innermost one. Jobs have some hundred
values and a depth of 15. Recursion in Python, and in its JSON, ends at about 1,000."""
MOST_CHARACTERS = 512 * 1024
"""Of all keys and texts of a spec. It is a part of the control message, a ConfigMap of 1 MiB at most, which names up to 4,096 pods besides."""
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


FILES = "move long lists and texts into files on the job's volumes"


def extent_violations(spec: Any) -> Iterator[Violation]:
    """At most one."""
    size = extent(spec)
    if size.depth > DEEPEST:
        rule = f"is nested deeper than {DEEPEST} objects and lists"
        yield Violation("spec", "set", rule, "write it with fewer levels")
    elif size.values > MOST_VALUES:
        rule = f"has more than {MOST_VALUES} values, counting the entries of all lists and objects"
        yield Violation("spec", "set", rule, FILES)
    elif size.characters > MOST_CHARACTERS:
        rule = f"has {size.characters} characters in all its keys and texts; at most {MOST_CHARACTERS} are allowed"
        yield Violation("spec", "set", rule, FILES)


RULES: tuple[Check, ...] = tuple(
    rule
    for rules in (
        *(task.RULES, lora.RULES, layout.RULES, data.RULES, rollout.RULES, environments.RULES),
        *(servers.RULES, speculation.RULES, exact.RULES, algorithm.RULES, rewards.RULES, keys.RULES, evaluation.RULES),
        *(scheduling.RULES, pods.RULES, references.RULES, volumes.RULES, task.CLIENT_RULES, gangs.RULES),
    )
    for rule in rules
)
OBJECT_RULES = tuple(rule for rule in RULES if isinstance(rule, Rule))
"""Rules that the CRD has as CEL."""
FUNCTIONS = tuple(rule for rule in RULES if not isinstance(rule, Rule))
CHECKS: tuple[Check, ...] = (*OBJECT_RULES, *FUNCTIONS)
"""In the order in which users read what they broke."""

JOB_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
"""Names of jobs: a DNS label that begins with a letter, since names of children begin with the job's."""

MOST = 50
"""Violations of one spec that are reported."""


def validate(spec: dict[str, Any], name: str, model_config: dict[str, Any] | None = None) -> ValidationResult:
    """Checks the raw `spec` of a job called `name` by all rules, and with `model_config`, a Hugging Face config.json, by the rules about the model.
    A spec that cannot be parsed is checked by the rules that do not depend on what is wrong with its schema.

    The work and the result are bounded, whatever the spec is: it may not be larger than `Extent` says, and MOST violations are reported."""
    if beyond := tuple(extent_violations(spec)):
        return ValidationResult(None, beyond)
    with limited():
        parsed, schema = _parse(spec)
        schema += verbatim_violations(spec, {v.field for v in schema})
        broken = broken_rules(parsed, model_config or {})
        violations = list(islice(chain(name_violations(name), schema, broken), MOST + 1))
    return ValidationResult(None if schema else parsed, tuple(_limited(violations)))


def readable(spec: dict[str, Any]) -> RLJobSpec | None:
    """What can be read of a raw spec, with UNREADABLE in place of the rest. None: it is too large to be looked at."""
    if any(extent_violations(spec)):
        return None
    with limited():
        return _parse(spec)[0]


def broken_rules(spec: RLJobSpec, model_config: dict[str, Any]) -> Iterator[Violation]:
    """Of a spec that could be read, also in part. An empty `model_config` is not known yet."""

    def check_model(spec: RLJobSpec) -> Iterable[Violation]:
        return model_violations(spec, model_config)

    yield from (violation for check in (*CHECKS, check_model) for violation in _decided(check, spec))


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
