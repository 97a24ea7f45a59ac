"""What the operator remembers between reconciles. It is empty after a restart, so nothing correct may depend on it."""

from dataclasses import dataclass, field

from rljob_operator.kube.api import Key
from rljob_operator.model.children import ChildProblem

AttemptId = tuple[str, int]
"""Job's uid and attempt's number."""


@dataclass(slots=True)
class ReconcilerState:
    """All of it, by job."""

    conflicts: dict[Key, tuple[ChildProblem, ...]] = field(default_factory=dict)
    """Children that could not be written, and why."""
    display: dict[Key, float] = field(default_factory=dict)
    """When a status in which only counts and sentences have changed may be written next, in seconds since the epoch."""
    attempts: dict[Key, tuple[AttemptId, float]] = field(default_factory=dict)
    """The open attempt, and when we first saw it, in seconds since the epoch: its heartbeat counts as no older than that."""
    gone: dict[Key, tuple[AttemptId, set[str]]] = field(default_factory=dict)
    """The open attempt, and uids of its members' pods that a live read has not found."""

    def since(self, key: Key, attempt: AttemptId, now: float) -> float:
        """When we first saw this attempt: `now`, if it is new."""
        known = self.attempts.get(key)
        if known is None or known[0] != attempt:
            known = self.attempts[key] = (attempt, now)
        return known[1]

    def gone_in(self, key: Key, attempt: AttemptId) -> set[str]:
        """Uids of pods of this attempt that a live read has not found. Those of earlier attempts are forgotten."""
        known = self.gone.get(key)
        if known is None or known[0] != attempt:
            known = self.gone[key] = (attempt, set())
        return known[1]

    def forget(self, key: Key) -> None:
        for by_job in (self.conflicts, self.display, self.attempts, self.gone):
            by_job.pop(key, None)
