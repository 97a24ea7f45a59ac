"""What a policy returns: the next status, and what is to be done along with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_api.protocol import Command
from rljob_api.status import Attempt, JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.times import stamp


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ungate:
    """A gated pod, and the node that it is pinned to when its gate is removed; empty: its scheduler chooses one."""

    pod: Pod
    node: str = ""
    head: bool = False
    """Whether it is the head of a server of several pods."""


@dataclass(frozen=True, slots=True)
class Change:
    """The outcome of one policy."""

    status: JobStatus
    events: tuple[Event, ...] = ()
    due: tuple[float, ...] = ()
    """Times, in seconds since the epoch, at which to reconcile again even if nothing else happens."""
    delete: tuple[Pod, ...] = ()
    """Pods to delete, by their uid."""
    force: tuple[Pod, ...] = ()
    """Pods to delete without waiting for their kubelet, which is dead."""
    ungate: tuple[Ungate, ...] = ()
    """Pods whose gate is removed."""
    let_go: tuple[Pod, ...] = ()
    """Pods from which the finalizer of their backend is removed."""

    @staticmethod
    def all(changes: Sequence["Change"]) -> "Change":
        """One change after another, of which there is at least one: the last one's status, and what is to be done for all."""
        # most do nothing
        acting = [c for c in changes if c.due or c.events or c.delete or c.force or c.ungate or c.let_go]
        return Change(
            changes[-1].status,
            tuple(event for change in acting for event in change.events),
            tuple(at for change in acting for at in change.due),
            tuple(pod for change in acting for pod in change.delete),
            tuple(pod for change in acting for pod in change.force),
            tuple(one for change in acting for one in change.ungate),
            tuple(pod for change in acting for pod in change.let_go),
        )


Policy = Callable[[Snapshot, JobStatus], Change]


def set_(status: JobStatus, **fields: object) -> JobStatus:
    """A copy of the status with these fields replaced."""
    return status.model_copy(update=fields)


def just_ended(s: Snapshot, status: JobStatus) -> bool:
    """Whether this reconcile has ended the attempt. What follows from that is written in the same status, hence exactly once."""
    return is_open(s.status.attempt) and not is_open(status.attempt)


def give_command(attempt: Attempt, command: Command, reason: str, now: float) -> Attempt:
    return attempt.model_copy(update={"command": command, "reason": reason, "commanded_at": stamp(now)})


def drained(attempt: Attempt, reason: str, now: float) -> Attempt:
    """The attempt, which is to drain unless it has to end already."""
    return attempt if attempt.command != "run" else give_command(attempt, "drain", reason, now)
