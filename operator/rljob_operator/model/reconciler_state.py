"""What the operator remembers between reconciles. Nothing here is needed for correctness: it is empty after a restart."""

from dataclasses import dataclass, field

from rljob_operator.kube.api import Key
from rljob_operator.model.children import ChildProblem

AttemptId = tuple[str, int]
"""Job's uid and attempt's number."""


@dataclass(slots=True)
class ReconcilerState:
    """By job."""

    conflicts: dict[Key, tuple[ChildProblem, ...]] = field(default_factory=dict)
    """Children that could not be written, and why."""
    display: dict[Key, float] = field(default_factory=dict)
    """When a status in which only counts and sentences changed may be written."""
    attempts: dict[Key, tuple[AttemptId, float]] = field(default_factory=dict)
    """The open attempt, and since when we have seen it: no heartbeat is older for us."""
    gone: dict[Key, set[str]] = field(default_factory=dict)
    """Uids of pods that were asked for live and did not exist."""

    def since(self, key: Key, attempt: AttemptId, now: float) -> float:
        known = self.attempts.get(key)
        if known is None or known[0] != attempt:
            known = self.attempts[key] = (attempt, now)
        return known[1]

    def forget(self, key: Key) -> None:
        for by_job in (self.conflicts, self.display, self.attempts, self.gone):
            by_job.pop(key, None)
