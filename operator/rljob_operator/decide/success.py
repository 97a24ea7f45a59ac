"""A job has succeeded when every member of an attempt says so, unless somebody has asked meanwhile to go back. That is final: see `opening` and
`request`."""

from rljob_api import reasons
from rljob_api.status import JobStatus
from rljob_operator.decide.change import Change, Event, just_closed, set_
from rljob_operator.decide.members import views
from rljob_operator.model.snapshot import Snapshot


def finish(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is None or not just_closed(s, status) or attempt.reason == reasons.RESUME_REQUESTED:
        return Change(status)
    if not all(v.result == "succeeded" for v in views(s, attempt)):
        return Change(status)
    event = Event("Normal", reasons.SUCCEEDED, f"all {status.progress.steps} steps are done")
    return Change(set_(status, outcome="Succeeded", outcome_reason=reasons.SUCCEEDED), (event,))
