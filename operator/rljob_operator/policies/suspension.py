"""Suspension: wanted by spec.suspend, unless a request overrides it; reached when no attempt is open."""

from rljob_api import reasons
from rljob_api.status import JobStatus
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_


def wanted(s: Snapshot, status: JobStatus) -> bool:
    return status.wants_suspend(s.spec_suspend)


def expire_override(s: Snapshot, status: JobStatus) -> Change:
    """A request's word holds until somebody changes spec.suspend."""
    expired = status.override and status.override.spec_suspend != s.spec_suspend
    return Change(set_(status, override=None) if expired else status)


def free_pods(s: Snapshot, status: JobStatus) -> Change:
    """Give the pods back, or ask for them again when they are gone."""
    suspended = wanted(s, status) and not status.outcome
    if suspended == status.suspended or is_open(status.attempt) or is_leaving(s, status):
        return Change(status)
    status = set_(status, suspended=suspended)
    if suspended:
        return Change(status, (Event("Normal", reasons.SUSPENDED, f"pods are released {saved(status)}"),))
    return Change(status, (Event("Normal", reasons.RESUMED, f"resumes {saved(status)}"),) if not status.outcome else ())


def is_leaving(s: Snapshot, status: JobStatus) -> bool:
    """Whether pods that were given back still look alive. Their StatefulSet was told to have none, and will delete them although it is told to
    have some again: an attempt that opened on them would lose them."""
    return (status.suspended or bool(status.outcome)) and not all(p.deleting for p in s.pods)


def saved(status: JobStatus) -> str:
    """Where the next attempt will start."""
    if status.resume_step == 0:
        return "from the initial weights"
    if status.resume_step is not None:
        return f"from step {status.resume_step}"
    latest = status.checkpoint.latest
    return f"at the checkpoint of step {latest.step}" if latest else "without a checkpoint"
