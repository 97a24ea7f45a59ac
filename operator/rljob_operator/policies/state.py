"""status.state, and whether the newest spec is in force."""

from rljob_api import reasons
from rljob_api.protocol import Progress
from rljob_api.spec import RLJobSpec
from rljob_api.status import Attempt, JobStatus, State
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event
from rljob_operator.policies.members import MemberStatus, member_statuses
from rljob_operator.policies.progress import current_progress
from rljob_operator.policies.suspension import is_suspension_wanted


def state(s: Snapshot, status: JobStatus) -> State:
    """The state, which is for display: no policy reads it."""
    attempt = status.attempt
    if status.outcome:
        return status.outcome
    if attempt is not None and is_open(attempt):
        return _of_open_attempt(s, status, attempt)
    if s.violations:
        return "Failed"
    if status.suspended:
        return "Suspended"
    return "Restarting" if attempt and not _was_suspended(attempt) else "Pending"


def _of_open_attempt(s: Snapshot, status: JobStatus, attempt: Attempt) -> State:
    if is_suspension_wanted(s, status):
        return "Suspending"
    if attempt.command != "run":
        return "Restarting"
    return "Running" if is_running(s, attempt) else "Starting"


def _was_suspended(attempt: Attempt) -> bool:
    """Whether the attempt ended for a suspension, so that the next one is no restart."""
    return attempt.reason == reasons.SUSPENDED


def is_running(s: Snapshot, attempt: Attempt) -> bool:
    """Whether every member reports that it runs the attempt, or has finished it, and rank 0 has loaded its model and has enough rollouts."""
    return _has_loaded(current_progress(s, attempt)) and all(
        _is_member_running(s, m, attempt) for m in member_statuses(s, attempt)
    )


def _is_member_running(s: Snapshot, m: MemberStatus, attempt: Attempt) -> bool:
    report = s.report(m.member)
    running = report is not None and (report.state, report.attempt) == ("running", attempt.number)
    return m.result == "succeeded" or (running and not m.ended)


def _has_loaded(progress: Progress | None) -> bool:
    return progress is not None and progress.phase not in ("fetching", "loading", "waiting")


def postpone_spec(s: Snapshot, status: JobStatus) -> Change:
    """Writes an event for each generation that takes effect with the next attempt only."""
    seen = s.status.observed_generation == s.job.generation
    text = "" if seen else postponement(s, status)
    return Change(status, (Event("Normal", reasons.SPEC_POSTPONED, text),) if text else ())


def postponement(s: Snapshot, status: JobStatus) -> str:
    """A sentence about a spec that takes effect with the next attempt; empty: the newest spec is in force."""
    if s.spec is None or s.control is None or not is_open(status.attempt):
        return ""
    running = s.spec_of(status.attempt)
    scalable = s.control.spec.scheduling.facts.scalable
    if running is None or _next_attempt_part(running, scalable) == _next_attempt_part(s.spec, scalable):
        return ""
    same = status.attempt is not None and status.attempt.generation == s.job.generation
    what = "a change of the cluster's defaults" if same else f"spec generation {s.job.generation}"
    return f"{what} takes effect with the next attempt; `kubectl rljob restart {s.job.name}` starts one"


def _next_attempt_part(spec: RLJobSpec, scalable: bool) -> RLJobSpec:
    """The spec without the fields that apply at once."""
    rollout = spec.rollout.model_copy(update={"replicas": 0}) if scalable else spec.rollout
    return spec.model_copy(update={"suspend": False, "lifecycle": None, "rollout": rollout})
