"""What validation finds, in the form that plan, status and the trainer's errors show."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.base import Model
from rljob_api.spec import RLJobSpec
from rljob_api.unreadable import undecidable

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
