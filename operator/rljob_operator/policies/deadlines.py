"""Time limits of a job: for its pods to start, for its attempts to run, and for its children to stay when it has ended."""

from rljob_api import reasons
from rljob_api.status import JobStatus
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, just_ended, set_
from rljob_operator.policies.opening import opening_problems
from rljob_operator.times import seconds, stamp


def enforce_active_deadline(s: Snapshot, status: JobStatus) -> Change:
    """Fails the job when its attempts have run for activeDeadlineSeconds in total; an open attempt is drained before that (see attempt.py). After a
    resume from a checkpoint the time counts anew."""
    if just_ended(s, status) and status.attempt and status.attempt.reason != reasons.RESUME_REQUESTED:
        spent = status.active_seconds + seconds(status.attempt.ended_at) - seconds(status.attempt.started_at)
        status = set_(status, active_seconds=max(0.0, spent))
    limit = s.lifecycle.active_deadline_seconds
    if limit is None or status.outcome or is_open(status.attempt) or status.active_seconds < limit:
        return Change(status)
    return _fail(
        status, reasons.ACTIVE_DEADLINE_EXCEEDED, f"attempts ran for activeDeadlineSeconds ({limit} s) and are not done"
    )


def active_until(s: Snapshot, status: JobStatus) -> float | None:
    """When the open attempt reaches activeDeadlineSeconds, in seconds since the epoch; None: never."""
    limit, attempt = s.lifecycle.active_deadline_seconds, status.attempt
    return seconds(attempt.started_at) + limit - status.active_seconds if limit is not None and attempt else None


def enforce_pending_deadline(s: Snapshot, status: JobStatus) -> Change:
    """Fails the job when no attempt opens within pendingDeadlineSeconds after its first reconcile, or after a resume."""
    if is_open(status.attempt) or status.suspended or status.outcome:
        return Change(set_(status, pending_since="") if status.pending_since else status)
    starts = not status.pending_since and (status.attempt is None or s.status.suspended or s.status.outcome)
    if starts:
        status = set_(status, pending_since=stamp(s.now))
    limit = s.lifecycle.pending_deadline_seconds
    if limit is None or not status.pending_since:
        return Change(status)
    until = seconds(status.pending_since) + limit
    if s.now < until:
        return Change(status, due=(until,))
    unplaced = status.placement.problem if status.placement else ""
    refused = [p.message for p in s.conflicts]
    why = unplaced or "; ".join((refused or list(opening_problems(s, status)))[:3])
    message = f"not all trainer pods started within pendingDeadlineSeconds ({limit} s): {why}"
    return _fail(set_(status, pending_since=""), reasons.PENDING_DEADLINE_EXCEEDED, message)


def clean_up_after_ttl(s: Snapshot, status: JobStatus) -> Change:
    """Marks the children of a finished job for deletion. The job stays, with its status, so that GitOps does not run it again."""
    if not status.outcome:
        return Change(set_(status, finished_at="", cleaned_up=False) if status.finished_at else status)
    status = status if status.finished_at else set_(status, finished_at=stamp(s.now))
    ttl = s.lifecycle.ttl_seconds_after_finished
    if ttl is None or status.cleaned_up:
        return Change(status)
    until = seconds(status.finished_at) + ttl
    return Change(status, due=(until,)) if s.now < until else Change(set_(status, cleaned_up=True))


def _fail(status: JobStatus, reason: str, message: str) -> Change:
    news = {"outcome": "Failed", "outcome_reason": reason, "outcome_message": message}
    return Change(set_(status, **news), (Event("Warning", reason, message),))
