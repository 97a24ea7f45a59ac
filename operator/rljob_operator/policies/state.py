"""The STATE column, whether a job runs, and whether its newest spec is in force."""

from rljob_api import reasons
from rljob_api.protocol import Progress
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, State
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event
from rljob_operator.policies.members import MemberStatus, member_statuses
from rljob_operator.policies.progress import current
from rljob_operator.policies.suspension import wanted


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
    return _begun(current(s, attempt)) and all(_runs(s, v, attempt) for v in member_statuses(s, attempt))


def _runs(s: Snapshot, view: MemberStatus, attempt: Attempt) -> bool:
    report = s.report(view.member)
    running = report is not None and (report.state, report.attempt) == ("running", attempt.number)
    return view.result == "succeeded" or (running and not view.ended)


def _begun(progress: Progress | None) -> bool:
    return progress is not None and progress.phase not in ("fetching", "loading", "waiting")


def postpone_spec(s: Snapshot, status: JobStatus) -> Change:
    """One event for each such generation."""
    seen = s.status.observed_generation == s.job.generation
    text = "" if seen else postponed(s, status)
    return Change(status, (Event("Normal", reasons.SPEC_POSTPONED, text),) if text else ())


def postponed(s: Snapshot, status: JobStatus) -> str:
    """Empty, or what to know about the spec that is not in force yet."""
    if s.spec is None or s.control is None or not is_open(status.attempt):
        return ""
    running = s.spec_of(status.attempt)
    if running is None or _lasting(running, s.scalable) == _lasting(s.spec, s.scalable):
        return ""
    same = status.attempt is not None and status.attempt.generation == s.job.generation
    what = "a change of the cluster's defaults" if same else f"spec generation {s.job.generation}"
    return f"{what} takes effect with the next attempt; `kubectl rljob restart {s.job.name}` starts one"


def _lasting(spec: RLJobSpec, scalable: bool) -> RLJobSpec:
    """Without what applies at once."""
    rollout = spec.rollout.model_copy(update={"replicas": 0}) if scalable else spec.rollout
    return spec.model_copy(update={"suspend": False, "lifecycle": None, "rollout": rollout})
