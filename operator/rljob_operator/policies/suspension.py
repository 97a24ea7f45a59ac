"""Suspension: wanted by spec.suspend unless a request overrides it, and reached when no attempt is open."""

from rljob_api import reasons
from rljob_api.status import JobStatus
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_


def is_suspension_wanted(s: Snapshot, status: JobStatus) -> bool:
    """By a request, else by spec.suspend."""
    return status.wants_suspend(s.spec_suspend)


def expire_override(s: Snapshot, status: JobStatus) -> Change:
    """A request to suspend or resume applies until somebody changes spec.suspend."""
    expired = status.override and status.override.spec_suspend != s.spec_suspend
    return Change(set_(status, override=None) if expired else status)


def free_pods(s: Snapshot, status: JobStatus) -> Change:
    """Frees the pods of a job that is to be suspended; asks for them again, once they are gone, when it is to be resumed."""
    suspended = is_suspension_wanted(s, status) and not status.outcome
    if suspended == status.suspended or is_open(status.attempt) or has_pods_to_lose(s, status):
        return Change(status)
    status = set_(status, suspended=suspended)
    if suspended:
        return Change(status, (Event("Normal", reasons.SUSPENDED, f"pods are released {resume_point(status)}"),))
    return Change(
        status, (Event("Normal", reasons.RESUMED, f"resumes {resume_point(status)}"),) if not status.outcome else ()
    )


def has_pods_to_lose(s: Snapshot, status: JobStatus) -> bool:
    """Whether freed pods are left that are not being deleted yet. Their StatefulSet was scaled to 0 and deletes them even if scaled up again, so
    an attempt that opened on them would lose them."""
    return (status.suspended or bool(status.outcome)) and not all(p.deleting for p in s.pods)


def resume_point(status: JobStatus) -> str:
    """Where the next attempt will start, as the end of a sentence."""
    if status.resume_step == 0:
        return "from the initial weights"
    if status.resume_step is not None:
        return f"from step {status.resume_step}"
    latest = status.checkpoint.latest
    return f"at the checkpoint of step {latest.step}" if latest else "without a checkpoint"
