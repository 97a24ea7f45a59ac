"""Requests of `kubectl rljob`: each is consumed once, by its nonce, even if it is refused."""

import hashlib

from pydantic import ValidationError

from rljob_api import names, reasons
from rljob_api.protocol import Request
from rljob_api.status import JobStatus, Override
from rljob_api.type_errors import first_problem
from rljob_operator.model.effective_spec import is_open
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.attempt import give_command
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.policies.suspension import has_pods_to_lose


def consume_request(s: Snapshot, status: JobStatus) -> Change:
    text = s.job.annotations.get(names.ANNOTATION_REQUEST)
    if not text:
        return Change(status)
    try:
        request = Request.model_validate_json(text)
    except ValidationError as error:
        return _refuse_unreadable(status, text, error)
    if request.job_uid != s.job.uid or request.nonce == status.request:
        return Change(status)
    if request.from_step is not None and has_pods_to_lose(s, status):
        return Change(status)  # it is consumed when the former pods are gone
    status = set_(status, request=request.nonce)
    if request.action == "restart":
        return _restart(s, status)
    if request.action == "suspend" or request.from_step is None:
        return _override(s, status, request.action == "suspend")
    return _go_back(s, status, request.from_step)


def _override(s: Snapshot, status: JobStatus, suspend: bool) -> Change:
    if status.outcome:
        return _refuse(status, f"the job has ended ({status.outcome}); only a resume from a checkpoint opens it again")
    return Change(set_(status, override=Override(suspend=suspend, spec_suspend=s.spec_suspend)))


def _restart(s: Snapshot, status: JobStatus) -> Change:
    attempt = status.attempt
    if attempt is None or not is_open(attempt):
        return _refuse(status, "no attempt runs that could be restarted")
    if attempt.command != "run":
        return _refuse(status, f"attempt {attempt.number} is ending already ({attempt.reason})")
    return Change(set_(status, attempt=give_command(attempt, "drain", reasons.RESTART_REQUESTED, s.now)))


def _go_back(s: Snapshot, status: JobStatus, step: int) -> Change:
    """Resumes from a complete checkpoint, or from the initial weights (`step` 0). An open attempt is stopped, and later steps are given up."""
    known = sorted({c.step for c in status.checkpoint.kept})
    if step and step not in known:
        has = ", ".join(map(str, known)) or "none"
        return _refuse(status, f"there is no complete checkpoint of step {step}; kept are: {has}")
    attempt = status.attempt
    if attempt and is_open(attempt):
        attempt = give_command(attempt, "stop", reasons.RESUME_REQUESTED, s.now)
    restarts = status.restarts.model_copy(update={"counted": 0, "uncounted": 0, "not_before": ""})
    override = Override(suspend=False, spec_suspend=s.spec_suspend)
    news = {"outcome": "", "outcome_reason": "", "outcome_message": "", "active_seconds": 0.0, "resume_step": step}
    return Change(set_(status, attempt=attempt, restarts=restarts, override=override, **news))


def _refuse(status: JobStatus, why: str) -> Change:
    return Change(status, (Event("Warning", reasons.REQUEST_REFUSED, why),))


def _refuse_unreadable(status: JobStatus, text: str, error: ValidationError) -> Change:
    nonce = "unreadable-" + hashlib.sha256(text.encode()).hexdigest()[:12]
    if status.request == nonce:
        return Change(status)
    return _refuse(
        set_(status, request=nonce), f"annotation {names.ANNOTATION_REQUEST} cannot be read: {first_problem(error)}"
    )
