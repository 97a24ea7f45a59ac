"""What rules are made of: violations, expressions in CEL and Python, and the rules that both know.

`field("train.promptsPerStep") % field("train.miniBatches")` is both `self.train.promptsPerStep % self.train.miniBatches` and a function of the spec.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rljob_api.base import UNREADABLE, Model, undecidable
from rljob_api.spec import RLJobSpec

LONGEST = 2000
"""Characters of each part of a violation."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule, with all that a user needs to fix it."""

    field: str
    """Path in the object, for example `spec.trainer.parallelism.tensor`."""
    value: str
    """What the field holds."""
    rule: str
    """What is wrong, with the numbers put in."""
    fix: str
    """What to change."""

    def __post_init__(self) -> None:
        """Raises Undecidable for a value that cannot be read: what is wrong with it has its own violation."""
        _ = f"{self.value}"

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.rule}; {self.fix}"

    def shortened(self) -> "Violation":
        """Without what would fill the screen: users write keys and values of any length."""
        return Violation(*(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..." for text in self._texts))

    @property
    def _texts(self) -> tuple[str, str, str, str]:
        return self.field, self.value, self.rule, self.fix


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of checking a raw spec by all rules."""

    spec: RLJobSpec | None
    """The parsed spec; None: it does not have the schema of one."""
    violations: tuple[Violation, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.violations

    @property
    def accepted(self) -> RLJobSpec | None:
        """The spec, if it breaks no rule."""
        return self.spec if self.valid else None

    def __str__(self) -> str:
        """All violations, one line each."""
        return lines(self.violations)


def as_given(section: Model) -> str:
    """A section of the spec as JSON, without its defaults. Raises Undecidable when a value in it cannot be read."""
    return json.dumps(section.model_dump(mode="json", by_alias=True, exclude_defaults=True, fallback=undecidable))


def lines(violations: Iterable[Violation]) -> str:
    return "\n".join(map(str, violations))


Literal = bool | int | float | str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """A value computed from a spec, or from one item of a list in it."""

    cel: str
    of: Callable[[Any], Any]
    label: str = ""
    """How messages name the value."""

    def named(self, label: str) -> "Expression":
        return replace(self, label=label)

    def __add__(self, other: "Expression | int") -> "Expression":
        return _binary("+", operator.add, self, other)

    def __sub__(self, other: "Expression | int") -> "Expression":
        return _binary("-", operator.sub, self, other)

    def __mul__(self, other: "Expression | int") -> "Expression":
        return _binary("*", operator.mul, self, other)

    def __floordiv__(self, other: "Expression | int") -> "Expression":
        """For integers that are not negative: CEL's `/` rounds towards zero."""
        return _binary("/", operator.floordiv, self, other)

    def __mod__(self, other: "Expression | int") -> "Expression":
        return _binary("%", operator.mod, self, other)

    def __gt__(self, other: "Expression | float") -> "Expression":
        return _binary(">", operator.gt, self, other)

    def __lt__(self, other: "Expression | float") -> "Expression":
        return _binary("<", operator.lt, self, other)

    def __le__(self, other: "Expression | float") -> "Expression":
        return _binary("<=", operator.le, self, other)

    def equals(self, other: "Expression | Literal") -> "Expression":
        return _binary("==", operator.eq, self, other)

    def divides(self, other: "Expression") -> "Expression":
        return (other % self).equals(0)

    def is_in(self, values: tuple[str, ...]) -> "Expression":
        return _binary("in", lambda value, among: value in among, self, values)

    def matches(self, pattern: str) -> "Expression":
        """Whether all of a text matches a pattern, which RE2 and Python's `re` read alike."""
        return Expression(
            f"{self.cel}.matches({literal(f'^({pattern})$')})",
            lambda spec: re.fullmatch(pattern, self.of(spec)) is not None,
        )

    def __and__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} && {other.cel})", lambda spec: self.of(spec) and other.of(spec))

    def __or__(self, other: "Expression") -> "Expression":
        return Expression(f"({self.cel} || {other.cel})", lambda spec: self.of(spec) or other.of(spec))

    def __invert__(self) -> "Expression":
        return Expression(f"!{self.cel}", lambda spec: not self.of(spec))

    def implies(self, other: "Expression") -> "Expression":
        return ~self | other


@cache
def field(path: str) -> Expression:
    """The value at a path of camelCase names below the spec, or below a list's item."""
    names = [re.sub(r"[A-Z]", r"_\g<0>", part).lower() for part in path.split(".")]

    def value(spec: Any) -> Any:
        for name in names:
            spec = getattr(spec, name)
        return spec

    return Expression(f"self.{path}", value, f"spec.{path}")


def present(path: str) -> Expression:
    """Whether an optional field is set. Of one that cannot be read nobody knows: an unknown field may stand for it."""

    def is_set(spec: Any) -> bool:
        given = value.of(spec)
        return undecidable() if given is UNREADABLE else given is not None

    value = field(path)
    return Expression(f"has(self.{path})", is_set, path)


def size(path: str) -> Expression:
    """Entries of a list, or letters of a text."""
    value = field(path)
    return Expression(f"size(self.{path})", lambda spec: len(value.of(spec)), path)


def count(conditions: tuple[Expression, ...]) -> Expression:
    """How many of them hold."""
    listed = ", ".join(condition.cel for condition in conditions)
    return Expression(f"[{listed}].filter(x, x).size()", lambda spec: sum(c.of(spec) for c in conditions))


def either(condition: Expression, yes: Expression | Literal, no: Expression | Literal) -> Expression:
    one, other = _wrap(yes), _wrap(no)
    return Expression(
        f"({condition.cel} ? {one.cel} : {other.cel})",
        lambda spec: one.of(spec) if condition.of(spec) else other.of(spec),
    )


def _binary(
    symbol: str, compute: Callable[[Any, Any], Any], left: Expression, right: Expression | Literal
) -> Expression:
    other = _wrap(right)
    return Expression(f"({left.cel} {symbol} {other.cel})", lambda spec: compute(left.of(spec), other.of(spec)))


def constant(value: Literal) -> Expression:
    """This value, whatever the spec."""
    return Expression(literal(value), lambda _: value)


def _wrap(value: Expression | Literal) -> Expression:
    return value if isinstance(value, Expression) else constant(value)


def literal(value: Literal) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)


Check = Callable[[RLJobSpec], Iterable[Violation]]
"""A rule that all jobs have to keep: a Rule, or a function for what CEL cannot say."""


def repeated(field: str, values: Sequence[str], fix: str) -> Iterator[Violation]:
    """Values that stand earlier in the list. `field`: with {} for the place."""
    for i, value in enumerate(values):
        if value in values[:i]:
            yield Violation(field.format(i), value, "stands twice", fix)


Shown = Callable[[Expression, Callable[[str], str]], str]
"""A fact of a rule in its message, where users write a field by its path."""


def _label(fact: Expression, at: Callable[[str], str]) -> str:
    """Its own name, or where its field is: below an item of a list, where the rule is about such items."""
    return at(fact.label.removeprefix("spec.")) if fact.label.startswith("spec.") else fact.label


PLACEHOLDER = re.compile(r"\{(\d|[a-z][\w.]*)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that needs only the object, declared once: the API server evaluates it as CEL, `validate` in Python, both in the same words."""

    path: str
    """The field that is wrong, below `spec` or below an item of `items`; empty: the item."""
    holds: Expression
    problem: str
    """What is wrong. `{0}` is replaced by the first of `facts`, as `label = value`, and `{trainer.nodes}` by the path of that field."""
    fix: str
    """What to change, with paths as in `problem`; of a fact the value alone, where there is one."""
    facts: tuple[Expression, ...] = ()
    value: Callable[[Any], object] | str | None = None
    """What messages show as the field's value, a word or computed from the spec or item; unset: the value itself."""
    items: str = ""
    """A list of the spec each of whose items has to keep the rule; empty: the rule is about the spec."""

    def __call__(self, spec: RLJobSpec) -> Iterator[Violation]:
        if self.items:
            for i, item in enumerate(field(self.items).of(spec)):
                yield from self.violations(item, _below(f"spec.{self.items}[{i}]"))
        else:
            yield from self.violations(spec, _below("spec"))

    def violations(self, scope: Any, at: Callable[[str], str]) -> Iterator[Violation]:
        """At most one, of what the rule is about. `at`: where users write a field, by its path below that."""
        if not self.holds.of(scope):
            value, problem = self._value(scope), self._filled(self.problem, at, _with_value(scope))
            yield Violation(at(self.path), _text(value), problem, self._filled(self.fix, at, _value_alone(scope)))

    def _value(self, scope: Any) -> object:
        if isinstance(self.value, str):
            return self.value
        return self.value(scope) if self.value else field(self.path).of(scope)

    def kubernetes(self) -> dict[str, str]:
        """An entry of `x-kubernetes-validations`. The message has no values: Kubernetes takes `string(number)` in a `messageExpression` for a text of
        unknown length, and refuses it as too costly."""
        at = _below(f"spec.{self.items}[]" if self.items else "spec")
        problem, fix = self._filled(self.problem, at), self._filled(self.fix, at)
        return {"rule": self.holds.cel, "message": f"{at(self.path)}: {problem}; {fix}"}

    def _filled(self, text: str, at: Callable[[str], str], shown: Shown = _label) -> str:
        """A text with its facts and paths filled in."""

        def fill(key: re.Match[str]) -> str:
            return shown(self.facts[int(key[1])], at) if key[1].isdigit() else at(key[1])

        return PLACEHOLDER.sub(fill, text)


def _with_value(scope: Any) -> Shown:
    def shown(fact: Expression, at: Callable[[str], str]) -> str:
        return f"{_label(fact, at)} = {_text(fact.of(scope))}"

    return shown


def _value_alone(scope: Any) -> Shown:
    def shown(fact: Expression, _: Callable[[str], str]) -> str:
        return _text(fact.of(scope))

    return shown


def _below(section: str) -> Callable[[str], str]:
    def at(path: str) -> str:
        return f"{section}.{path}" if path else section

    return at


def _text(value: object) -> str:
    """A value as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


SIZES = "trainer.parallelism"
TENSOR, PIPELINE, CONTEXT = (field(f"{SIZES}.{size}") for size in ("tensor", "pipeline", "context"))

RL, ADVANTAGE = field("task").equals("rl"), field("algorithm.advantage")
SERVICE = field("task").equals("service")
TEACHER = present("algorithm.distillation")
AGENT, TURN = present("rollout.agent"), field("rollout.sampling.maxTokens")
COLOCATED = field("rollout.placement").equals("colocated")
