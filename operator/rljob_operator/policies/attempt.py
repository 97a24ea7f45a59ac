"""An open attempt: when its members are commanded to drain or stop, that it ends when all of them have, and what its end means for the job: a restart
that counts, one that does not, failure or success."""

from collections.abc import Iterator

from rljob_api import reasons
from rljob_api.protocol import RESUME_STEP
from rljob_api.status import Attempt, JobStatus, LastFailure, Restarts
from rljob_api.status_parts import CheckpointStatus
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.causes import (
    Cause,
    MemberStatus,
    has_finished,
    member_statuses,
    misconfiguration,
    recorded_cause,
    root_cause,
    stall,
    trainers,
)
from rljob_operator.policies.change import Change, Event, give_command, just_ended, set_
from rljob_operator.policies.lifecycle import active_until
from rljob_operator.policies.nodes import is_leaving
from rljob_operator.times import backoff, seconds, stamp

MOST_ATTEMPTS = 10**6
"""A control message with a higher number was not written by the operator."""


def recover_attempt(s: Snapshot, status: JobStatus) -> Change:
    """The attempt of the control message, if the status was wiped while the job stayed: the message of a job that was made again is another
    job's. A first attempt would never begin: launchers begin none whose number they have seen, and checkpoints belong to the highest one."""
    known = s.control
    if status.attempt or known is None or not 0 < known.attempt < MOST_ATTEMPTS:
        return Change(status)
    attempt = Attempt(
        number=known.attempt,
        command=known.command,
        members=known.members,
        resume_step=known.resume.step,
        saved_step=known.resume.saved,
        generation=s.job.generation,
        started_at=stamp(s.now),
        commanded_at="" if known.command == "run" else stamp(s.now),
    )
    return Change(set_(status, attempt=attempt))


def advance_attempt(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is None or not is_open(attempt):
        return Change(status)
    members = member_statuses(s, attempt)
    finished = has_finished(members)
    cause = None
    if not finished:
        cause = root_cause(attempt, members) or stall(s, status, attempt) or misconfiguration(s, attempt)
    attempt = _advanced(s, status, attempt, members, cause)
    if all(m.ended for m in members):
        attempt = attempt.model_copy(update={"ended_at": stamp(s.now)})
        return Change(set_(status, attempt=attempt), _drained(attempt, finished))
    return Change(set_(status, attempt=attempt), due=tuple(t for t in _deadlines(s, attempt) if t > s.now))


def _advanced(
    s: Snapshot, status: JobStatus, attempt: Attempt, members: list[MemberStatus], cause: Cause | None
) -> Attempt:
    """With the cause of its failure, or with the next command, if one is due."""
    if cause and cause != recorded_cause(attempt):
        return _failed(attempt, cause, s.now)
    if attempt.command == "run" and s.is_void(attempt):
        return give_command(attempt, "stop", reasons.SPEC_CHANGED, s.now)
    reason = _reason_to_drain(s, status, members) if attempt.command == "run" else ""
    if reason:
        return give_command(attempt, "drain", reason, s.now)
    if attempt.command != "stop" and (_is_drain_overdue(s, attempt) or _only_helpers_are_left(members)):
        return give_command(attempt, "stop", attempt.reason, s.now)
    return attempt


def _is_drain_overdue(s: Snapshot, attempt: Attempt) -> bool:
    return attempt.command == "drain" and s.now >= _drain_deadline(s, attempt)


def _only_helpers_are_left(members: list[MemberStatus]) -> bool:
    """Whether the gangs of other models are left over: all trainers have ended, and nobody else asks them to compute."""
    return all(m.ended for m in trainers(members)) and not all(m.ended for m in members)


def _failed(attempt: Attempt, cause: Cause, now: float) -> Attempt:
    commanded_at = attempt.commanded_at if attempt.command == "stop" else stamp(now)
    news = {
        "command": "stop",
        "reason": cause.reason,
        "commanded_at": commanded_at,
        "failure": cause.failure,
        "failed_pod": cause.pod,
    }
    return attempt.model_copy(update=news)


def _reason_to_drain(s: Snapshot, status: JobStatus, members: list[MemberStatus]) -> str:
    if status.wants_suspend(s.spec_suspend):
        return reasons.SUSPENDED
    until = active_until(s, status)
    if until is not None and s.now >= until:
        return reasons.ACTIVE_DEADLINE_EXCEEDED
    if any(m.pod and m.pod.deleting and not m.ended for m in members):
        return reasons.POD_DELETING
    if is_leaving(s, status):
        return reasons.LEAVING_NODE
    return ""


def _drain_deadline(s: Snapshot, attempt: Attempt) -> float:
    return seconds(attempt.commanded_at) + s.lifecycle.drain_timeout_seconds


def _deadlines(s: Snapshot, attempt: Attempt) -> Iterator[float]:
    until = active_until(s, s.status)
    if until is not None:
        yield until
    if attempt.command == "drain":
        yield _drain_deadline(s, attempt)
    if s.heartbeat_age is not None:
        yield s.now - s.heartbeat_age + s.lifecycle.stall_timeout_seconds


def _drained(attempt: Attempt, finished: bool) -> tuple[Event, ...]:
    if finished or attempt.reason in reasons.FAILURES:
        return ()
    message = f"attempt {attempt.number} ended because it was told to {attempt.command} ({attempt.reason})"
    return (Event("Normal", reasons.ATTEMPT_DRAINED, message),)


UNCOUNTED = (reasons.POD_DELETING, reasons.STRANDED, reasons.TOKEN_REPLACED, reasons.ACCOUNT_REPLACED)
"""Reasons for which an attempt that did not fail, and that nobody asked to restart, is followed by another."""


def count_restart(s: Snapshot, status: JobStatus) -> Change:
    """Counts the failure in the same status that ends the attempt, so that a crash can neither lose it nor count it twice."""
    attempt = status.attempt
    if attempt is None or not just_ended(s, status):
        return Change(status)
    cause = recorded_cause(attempt)
    if cause is None:
        return Change(set_(status, restarts=_after_drain(s, status, attempt.reason)))
    failure = LastFailure(
        attempt=attempt.number, reason=cause.reason, pod=cause.pod, failure=cause.failure, time=stamp(s.now)
    )
    event = Event("Warning", reasons.ATTEMPT_FAILED, f"attempt {attempt.number} failed ({cause.reason}): {cause}")
    status = set_(status, last_failure=failure, checkpoint=_existing(status.checkpoint, attempt, cause))
    return Change(_cost(s, status, cause), (event,))


def _existing(known: CheckpointStatus, attempt: Attempt, cause: Cause) -> CheckpointStatus:
    """The known checkpoints, without the requested one if its manifest turned out to be gone: it must not be offered again."""
    if cause.failure.field != RESUME_STEP:
        return known
    kept = [c for c in known.kept if c.step != attempt.resume_step]
    return CheckpointStatus(latest=kept[-1] if kept else None, kept=kept)


def _cost(s: Snapshot, status: JobStatus, cause: Cause) -> JobStatus:
    if cause.reason == reasons.CONFIGURATION_ERROR:
        return set_(status, outcome="Failed", outcome_reason=cause.reason)
    if cause.reason in reasons.NOT_COUNTED:
        return set_(status, restarts=_uncounted(s, status.restarts, cause.reason in reasons.DELAYED))
    counted = status.restarts.counted + 1
    if counted > s.lifecycle.max_restarts:
        restarts = status.restarts.model_copy(update={"counted": counted})
        return set_(status, outcome="Failed", outcome_reason=reasons.REACHED_MAX_RESTARTS, restarts=restarts)
    until = stamp(s.now + backoff(s.lifecycle.backoff_seconds, counted))
    news = {"total": status.restarts.total + 1, "counted": counted, "not_before": until}
    return set_(status, restarts=status.restarts.model_copy(update=news))


def _after_drain(s: Snapshot, status: JobStatus, reason: str) -> Restarts:
    """Restarts after an attempt that was drained or stopped for this reason, and did not fail."""
    if reason in (reasons.RESTART_REQUESTED, reasons.LEAVING_NODE):
        return status.restarts.model_copy(update={"total": status.restarts.total + 1})
    return _uncounted(s, status.restarts) if reason in UNCOUNTED else status.restarts


def _uncounted(s: Snapshot, restarts: Restarts, delayed: bool = False) -> Restarts:
    """Unless `delayed`, the first one starts at once: most often something has happened that will not happen again soon, such as the drain of a node.
    Those that follow in a row wait, since each costs the load of the model and all steps since the last checkpoint."""
    news: dict[str, object] = {"total": restarts.total + 1, "uncounted": restarts.uncounted + 1}
    number = restarts.uncounted + delayed
    if number:
        news["not_before"] = stamp(s.now + backoff(s.lifecycle.backoff_seconds, number))
    return restarts.model_copy(update=news)


def succeed(s: Snapshot, status: JobStatus) -> Change:
    """Ends the job when all trainers have finished, unless somebody has meanwhile asked to go back to a checkpoint."""
    attempt = status.attempt
    if attempt is None or not just_ended(s, status) or attempt.reason == reasons.RESUME_REQUESTED:
        return Change(status)
    if not has_finished(member_statuses(s, attempt)):
        return Change(status)
    event = Event("Normal", reasons.SUCCEEDED, f"all {status.progress.steps} steps are done")
    return Change(set_(status, outcome="Succeeded", outcome_reason=reasons.SUCCEEDED), (event,))
