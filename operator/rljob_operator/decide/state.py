"""The one word of the STATE column, and whether it can be Running."""

from rljob_api import reasons
from rljob_api.protocol import Progress
from rljob_api.status import Attempt, JobStatus, State
from rljob_operator.decide.members import View, views
from rljob_operator.decide.progress import current
from rljob_operator.decide.suspend import wanted
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot


def state(s: Snapshot, status: JobStatus) -> State:
    """Computed for display, never read by a policy."""
    attempt = status.attempt
    if status.outcome:
        return status.outcome
    if attempt is not None and is_open(attempt):
        return _of_open(s, status, attempt)
    if s.violations:
        return "Failed"
    if status.suspended:
        return "Suspended"
    return "Restarting" if attempt and not _came_back(attempt) else "Pending"


def _of_open(s: Snapshot, status: JobStatus, attempt: Attempt) -> State:
    if wanted(s, status):
        return "Suspending"
    if attempt.command != "run":
        return "Restarting"
    return "Running" if runs(s, attempt) else "Starting"


def _came_back(attempt: Attempt) -> bool:
    """The last attempt ended for a suspension: its successor is no restart."""
    return attempt.reason == reasons.SUSPENDED


def runs(s: Snapshot, attempt: Attempt) -> bool:
    """Every member runs the attempt by its own word or has just finished it, and rank 0 has loaded and has somebody to generate for it."""
    return _begun(current(s, attempt)) and all(_runs(s, v, attempt) for v in views(s, attempt))


def _runs(s: Snapshot, view: View, attempt: Attempt) -> bool:
    report = s.report(view.member)
    running = report is not None and (report.state, report.attempt) == ("running", attempt.number)
    return view.result == "succeeded" or (running and not view.ended)


def _begun(progress: Progress | None) -> bool:
    return progress is not None and progress.phase not in ("loading", "waiting")
