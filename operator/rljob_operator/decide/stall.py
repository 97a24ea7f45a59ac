"""A run whose heartbeat stands still has failed, whatever its pods look like."""

from rljob_api import reasons
from rljob_api.protocol import Failure
from rljob_api.status import Attempt, JobStatus
from rljob_operator.decide.cause import Cause
from rljob_operator.decide.progress import current
from rljob_operator.model.snapshot import Snapshot

ROLLOUT_PHASES = ("waiting", "generating", "evaluating")


def stalled(s: Snapshot, status: JobStatus, attempt: Attempt) -> Cause | None:
    """The age is measured by the operator while it can see reports, so its own restart or an API outage is no stall."""
    limit = s.lifecycle.stall_timeout_seconds
    if attempt.command == "stop" or s.beat_age is None or s.beat_age < limit:
        return None
    progress = current(s, attempt)
    phase = progress.phase if progress else "loading"
    role = "rollouts" if phase in ROLLOUT_PHASES else "trainer"
    message = f"no progress for {limit} s while {phase} at step {progress.step if progress else status.progress.step}"
    if role == "rollouts":
        message += f"; the trainer is waiting for its rollouts, of which {sum(p.ready for p in s.rollouts)} answer"
    failure = Failure(kind="application", exception=reasons.NO_PROGRESS, message=message, time=s.now)
    return Cause(reasons.NO_PROGRESS, attempt.members[0].pod if role == "trainer" else "", failure)
