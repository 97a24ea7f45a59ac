"""A spec that changes while an attempt runs: said, and kept for the next attempt."""

from rljob_api import reasons
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus
from rljob_operator.decide.change import Change, Event
from rljob_operator.model.effective_spec import is_open, scales
from rljob_operator.model.snapshot import Snapshot


def postpone(s: Snapshot, status: JobStatus) -> Change:
    """One event for each such generation."""
    seen = s.status.observed_generation == s.job.generation
    text = "" if seen else postponed(s, status)
    return Change(status, (Event("Normal", reasons.SPEC_POSTPONED, text),) if text else ())


def postponed(s: Snapshot, status: JobStatus) -> str:
    """Empty, or what to know about the spec that is not in force yet."""
    if s.spec is None or s.control is None or not is_open(status.attempt):
        return ""
    running = s.spec_of(status.attempt)
    if running is None or _lasting(running) == _lasting(s.spec):
        return ""
    return f"spec generation {s.job.generation} takes effect with the next attempt; `kubectl rljob restart {s.job.name}` starts one"


def _lasting(spec: RLJobSpec) -> RLJobSpec:
    """Without what is obeyed at once."""
    rollout = spec.rollout.model_copy(update={"replicas": 0}) if scales(spec) else spec.rollout
    return spec.model_copy(update={"suspend": False, "lifecycle": None, "rollout": rollout})
