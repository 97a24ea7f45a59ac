"""An open attempt: when its members are commanded to drain or stop, and that it ends when all of them have."""

from collections.abc import Iterator

from rljob_api import reasons
from rljob_api.protocol import Command
from rljob_api.status import Attempt, JobStatus
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.causes import Cause, misconfiguration, recorded_cause, root_cause, stall
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.deadlines import active_until
from rljob_operator.policies.members import MemberStatus, has_finished, member_statuses, trainers
from rljob_operator.policies.nodes import is_leaving
from rljob_operator.policies.suspension import is_suspension_wanted
from rljob_operator.times import seconds, stamp


def advance_attempt(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is None or not is_open(attempt):
        return Change(status)
    members = member_statuses(s, attempt)
    finished = has_finished(members)
    cause = (
        None if finished else root_cause(attempt, members) or stall(s, status, attempt) or misconfiguration(s, attempt)
    )
    if cause and cause != recorded_cause(attempt):
        attempt = _failed(attempt, cause, s.now)
    elif attempt.command == "run" and s.is_void(attempt):
        attempt = give_command(attempt, "stop", reasons.SPEC_CHANGED, s.now)
    elif attempt.command == "run" and (reason := _reason_to_drain(s, status, members)):
        attempt = give_command(attempt, "drain", reason, s.now)
    elif attempt.command != "stop" and (_is_drain_overdue(s, attempt) or _only_helpers_are_left(members)):
        attempt = give_command(attempt, "stop", attempt.reason, s.now)
    if all(m.ended for m in members):
        attempt = attempt.model_copy(update={"ended_at": stamp(s.now)})
        return Change(set_(status, attempt=attempt), _drained(attempt, finished))
    return Change(set_(status, attempt=attempt), due=tuple(t for t in _deadlines(s, attempt) if t > s.now))


def _is_drain_overdue(s: Snapshot, attempt: Attempt) -> bool:
    return attempt.command == "drain" and s.now >= _drain_deadline(s, attempt)


def _only_helpers_are_left(members: list[MemberStatus]) -> bool:
    """Whether the gangs of other models are left over: all trainers have ended, and nobody else asks them to compute."""
    return all(m.ended for m in trainers(members)) and not all(m.ended for m in members)


def give_command(attempt: Attempt, command: Command, reason: str, now: float) -> Attempt:
    return attempt.model_copy(update={"command": command, "reason": reason, "commanded_at": stamp(now)})


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
    if is_suspension_wanted(s, status):
        return reasons.SUSPENDED
    if (until := active_until(s, status)) is not None and s.now >= until:
        return reasons.ACTIVE_DEADLINE_EXCEEDED
    if any(m.pod and m.pod.deleting and not m.ended for m in members):
        return reasons.POD_DELETING
    if is_leaving(s, status):
        return reasons.LEAVING_NODE
    return ""


def _drain_deadline(s: Snapshot, attempt: Attempt) -> float:
    return seconds(attempt.commanded_at) + s.lifecycle.drain_timeout_seconds


def _deadlines(s: Snapshot, attempt: Attempt) -> Iterator[float]:
    if (until := active_until(s, s.status)) is not None:
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
