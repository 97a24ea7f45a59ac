"""Rollouts fail alone and are replaced alone; only a mistake of the user's that keeps every one of them down fails the job."""

from rljob_api import reasons
from rljob_api.status import Attempt
from rljob_operator.decide.cause import Cause
from rljob_operator.model.snapshot import Snapshot


def misconfigured(s: Snapshot, attempt: Attempt) -> Cause | None:
    """A rollout that says its configuration is wrong, while none answers."""
    if attempt.command == "stop" or any(p.ready for p in s.rollouts):
        return None
    for pod in s.rollouts:
        report = s.report(pod)
        if report and report.failure and report.failure.kind == "configuration":
            return Cause(reasons.CONFIGURATION_ERROR, pod.name, report.failure)
    return None
