"""What the end of an attempt means for the job: a restart that counts, one that does not, failure or success.
And how long the operator waits before it tries again: to start the gang, or a pod that its kubelet has failed."""

from rljob_api import reasons
from rljob_api.progress_status import CheckpointStatus
from rljob_api.protocol import RESUME_STEP
from rljob_api.status import Attempt, JobStatus, LastFailure, Restarts
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.causes import Cause, has_finished, member_statuses, recorded_cause
from rljob_operator.policies.change import Change, Event, just_ended, set_
from rljob_operator.times import is_ahead, stamp

LONGEST_BACKOFF = 600.0
"""Seconds to wait, at most."""
MOST_DOUBLINGS = 30
"""More would change nothing: two to the power of many failures is a number that takes long to compute."""


def backoff(first: int, number: int) -> float:
    """Seconds to wait after failure `number` in a row: `first`, doubled each time, up to LONGEST_BACKOFF."""
    return min(LONGEST_BACKOFF, first * 2 ** min(number - 1, MOST_DOUBLINGS))


def is_backing_off(start: float, now: float) -> bool:
    """Whether the back-off until `start` still lasts."""
    return is_ahead(start, LONGEST_BACKOFF, now)


def retry_at(s: Snapshot, pod: str) -> float:
    """When a pod of this name may start again after those that its kubelet has failed, in seconds since the epoch; 0: at once. Otherwise a node that
    admits no pod of the job, as one with a broken GPU, would get the next one within a second, for ever."""
    last = s.failed.get(pod)
    if last is None or not last.times:
        return 0.0
    until = last.at + backoff(s.lifecycle.backoff_seconds, last.times)
    return until if is_backing_off(until, s.now) else 0.0


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
    if number := restarts.uncounted + delayed:
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
