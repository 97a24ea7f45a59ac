"""A rule that needs only the object, declared once: the API server evaluates it as CEL, `validate` in Python, both in the same words."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.validation.expression import Expression, field
from rljob_api.validation.result import Violation

PLACEHOLDER = re.compile(r"\{(\d)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What has to hold, and what users read when it does not."""

    path: str
    """The field that is wrong, below `spec` or below an item of `items`; empty: the item."""
    holds: Expression
    problem: str
    """What is wrong. `{0}` is replaced by the first of `facts`, as `label = value`."""
    fix: str
    """What to change."""
    facts: tuple[Expression, ...] = ()
    value: Callable[[Any], object] | None = None
    """What messages show as the field's value; unset: the value itself."""
    items: str = ""
    """A list of the spec each of whose items has to keep the rule; empty: the rule is about the spec."""

    def violations(self, spec: RLJobSpec) -> Iterator[Violation]:
        if self.items:
            for i, item in enumerate(field(self.items).of(spec)):
                yield from self._violations(item, f"spec.{self.items}[{i}]")
        else:
            yield from self._violations(spec, "spec")

    def _violations(self, scope: Any, prefix: str) -> Iterator[Violation]:
        if not self.holds.of(scope):
            value = (self.value or field(self.path).of)(scope)
            problem = self._problem(lambda fact: f"{fact.label} = {_text(fact.of(scope))}")
            yield Violation(self._field(prefix), _text(value), problem, self.fix)

    def kubernetes(self) -> dict[str, str]:
        """An entry of `x-kubernetes-validations`. The message has no values: Kubernetes takes `string(number)` in a `messageExpression` for a text of
        unknown length, and refuses it as too costly."""
        where = self._field(f"spec.{self.items}[]" if self.items else "spec")
        problem = self._problem(lambda fact: fact.label)
        return {"rule": self.holds.cel, "message": f"{where}: {problem}; {self.fix}"}

    def _problem(self, text: Callable[[Expression], str]) -> str:
        """The problem with its facts filled in."""
        return PLACEHOLDER.sub(lambda found: text(self.facts[int(found[1])]), self.problem)

    def _field(self, prefix: str) -> str:
        return f"{prefix}.{self.path}" if self.path else prefix


def _text(value: object) -> str:
    """A value as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
