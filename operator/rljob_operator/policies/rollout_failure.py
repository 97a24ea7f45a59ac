"""Failures of rollouts and of pools' servers, which their pods start again: one event each."""

from rljob_api import reasons
from rljob_api.status import JobStatus, RolloutFailure
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, Event, set_


def record_rollout_failure(s: Snapshot, status: JobStatus) -> Change:
    """What is newer than the last one recorded, by the clocks of the pods."""
    known = status.last_rollout_failure.failure.time if status.last_rollout_failure else 0.0
    reports = [(pod.name, report.failure) for pod in s.servers if (report := s.report(pod)) and report.failure]
    new = sorted((entry for entry in reports if entry[1].time > known), key=lambda entry: entry[1].time)
    if not new:
        return Change(status)
    found = [RolloutFailure(pod=name, failure=failure) for name, failure in new]
    events = tuple(Event("Warning", reasons.ROLLOUT_FAILED, _sentence(f)) for f in found)
    return Change(set_(status, last_rollout_failure=found[-1]), events)


def _sentence(found: RolloutFailure) -> str:
    failure = found.failure
    return f"{found.pod}: " + ": ".join(text for text in (failure.exception, failure.message) if text)
