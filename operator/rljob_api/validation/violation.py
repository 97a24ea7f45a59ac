"""What is wrong with a job, so that a user can mend it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule."""

    field: str
    """Path in the object, for example `spec.trainer.parallelism.tensor`."""
    value: str
    """What stands there."""
    rule: str
    """What has to hold, with the numbers put in."""
    fix: str
    """What to change."""

    def __str__(self) -> str:
        return f"{self.field} = {self.value}: {self.rule}; {self.fix}"


def message(violations: Iterable[Violation]) -> str:
    """All of them in one text, one line each."""
    return "\n".join(map(str, violations))
