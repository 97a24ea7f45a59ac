"""Expressions in two languages: CEL for the CRD, where the API server evaluates them, and Python for everyone who has a parsed spec.

`field("train.promptsPerStep") % field("train.miniBatches")` is both `self.train.promptsPerStep % self.train.miniBatches` and a function of the spec.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rljob_api.unreadable import UNREADABLE, undecidable

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
    names = [re.sub(r"[A-Z]", lambda found: "_" + found[0].lower(), part) for part in path.split(".")]

    def value(spec: Any) -> Any:
        for name in names:
            spec = getattr(spec, name)
        return spec

    return Expression(f"self.{path}", value, f"spec.{path}")


def present(path: str) -> Expression:
    """Whether an optional field is set. Of one that cannot be read nobody knows: an unknown field may stand for it."""

    def is_set(spec: Any) -> bool:
        found = value.of(spec)
        return undecidable() if found is UNREADABLE else found is not None

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


def _wrap(value: Expression | Literal) -> Expression:
    return value if isinstance(value, Expression) else Expression(literal(value), lambda _: value)


def literal(value: Literal) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)
