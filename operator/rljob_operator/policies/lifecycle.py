"""What users and time limits do to a job: requests of `kubectl rljob`, each consumed once, by its nonce, even if it is refused; suspension, wanted by
spec.suspend unless a request overrides it, and reached when no attempt is open; and limits for its pods to start, for its attempts to run, and for
its children to stay when it has ended.

A service that nobody asks for anything sleeps: it is suspended, as by a request, while its gateway stays. The next request wakes it. One pod is its
gateway. Each naming of another one has a number, in the status before the pod hears of it.
"""

import hashlib

from pydantic import ValidationError

from rljob_api import names, reasons
from rljob_api.protocol import Request
from rljob_api.status import JobStatus, SuspendOverride
from rljob_api.status_parts import ServiceStatus
from rljob_api.text import http_url
from rljob_api.type_errors import first_problem
from rljob_operator.model.children import sentences
from rljob_operator.model.ordinals import gateway_pod
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, give_command, just_ended, set_
from rljob_operator.policies.opening import opening_problems, resume_point
from rljob_operator.times import seconds, stamp


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
    return Change(set_(status, override=SuspendOverride(suspend=suspend, spec_suspend=s.spec_suspend), asleep=False))


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
    override = SuspendOverride(suspend=False, spec_suspend=s.spec_suspend)
    news = {"outcome": "", "outcome_reason": "", "outcome_message": "", "active_seconds": 0.0, "resume_step": step}
    news["asleep"] = False
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


def expire_override(s: Snapshot, status: JobStatus) -> Change:
    """A request to suspend or resume applies until somebody changes spec.suspend."""
    expired = status.override and status.override.spec_suspend != s.spec_suspend
    return Change(set_(status, override=None) if expired else status)


def free_pods(s: Snapshot, status: JobStatus) -> Change:
    """Frees the pods of a job that is to be suspended; asks for them again, once they are gone, when it is to be resumed."""
    suspended = status.wants_suspend(s.spec_suspend) and not status.outcome
    if suspended == status.suspended or is_open(status.attempt) or has_pods_to_lose(s, status):
        return Change(status)
    status = set_(status, suspended=suspended)
    if suspended:
        return Change(status, (Event("Normal", reasons.SUSPENDED, f"pods are released {resume_point(status)}"),))
    return Change(
        status, (Event("Normal", reasons.RESUMED, f"resumes {resume_point(status)}"),) if not status.outcome else ()
    )


def has_pods_to_lose(s: Snapshot, status: JobStatus) -> bool:
    """Whether freed pods are left that are not being deleted yet, besides a gateway, which stays until the job has ended. Their StatefulSet was
    scaled to 0 and deletes them even if scaled up again, so an attempt that opened on them would lose them."""
    freed = (p for p in s.pods if status.outcome or not names.stays(p.role))
    return (status.suspended or bool(status.outcome)) and not all(p.deleting for p in freed)


def enforce_active_deadline(s: Snapshot, status: JobStatus) -> Change:
    """Fails the job when its attempts have run for activeDeadlineSeconds in total; an open attempt is drained before that (see attempt.py). After a
    resume from a checkpoint the time counts anew."""
    if just_ended(s, status) and status.attempt and status.attempt.reason != reasons.RESUME_REQUESTED:
        spent = status.active_seconds + seconds(status.attempt.ended_at) - seconds(status.attempt.started_at)
        status = set_(status, active_seconds=max(0.0, spent))
    limit = s.lifecycle.active_deadline_seconds
    if limit is None or status.outcome or is_open(status.attempt) or status.active_seconds < limit:
        return Change(status)
    return _fail(
        status, reasons.ACTIVE_DEADLINE_EXCEEDED, f"attempts ran for activeDeadlineSeconds ({limit} s) and are not done"
    )


def active_until(s: Snapshot, status: JobStatus) -> float | None:
    """When the open attempt reaches activeDeadlineSeconds, in seconds since the epoch; None: never."""
    limit, attempt = s.lifecycle.active_deadline_seconds, status.attempt
    return seconds(attempt.started_at) + limit - status.active_seconds if limit is not None and attempt else None


def enforce_pending_deadline(s: Snapshot, status: JobStatus) -> Change:
    """Fails the job when no attempt opens within pendingDeadlineSeconds after its first reconcile, or after a resume."""
    if is_open(status.attempt) or status.suspended or status.outcome:
        return Change(set_(status, pending_since="") if status.pending_since else status)
    starts = not status.pending_since and (status.attempt is None or s.status.suspended or s.status.outcome)
    if starts:
        status = set_(status, pending_since=stamp(s.now))
    limit = s.lifecycle.pending_deadline_seconds
    if limit is None or not status.pending_since:
        return Change(status)
    until = seconds(status.pending_since) + limit
    if s.now < until:
        return Change(status, due=(until,))
    unplaced = status.placement.problem if status.placement else ""
    refused = sentences(s.conflicts)
    why = unplaced or "; ".join((refused or list(opening_problems(s, status)))[:3])
    message = f"not all trainer pods started within pendingDeadlineSeconds ({limit} s): {why}"
    return _fail(set_(status, pending_since=""), reasons.PENDING_DEADLINE_EXCEEDED, message)


def clean_up_after_ttl(s: Snapshot, status: JobStatus) -> Change:
    """Marks the children of a finished job for deletion. The job stays, with its status, so that GitOps does not run it again."""
    if not status.outcome:
        return Change(set_(status, finished_at="", cleaned_up=False) if status.finished_at else status)
    status = status if status.finished_at else set_(status, finished_at=stamp(s.now))
    ttl = s.lifecycle.ttl_seconds_after_finished
    if ttl is None or status.cleaned_up:
        return Change(status)
    until = seconds(status.finished_at) + ttl
    return Change(status, due=(until,)) if s.now < until else Change(set_(status, cleaned_up=True))


def _fail(status: JobStatus, reason: str, message: str) -> Change:
    news = {"outcome": "Failed", "outcome_reason": reason, "outcome_message": message}
    return Change(set_(status, **news), (Event("Warning", reason, message),))


def sleep_when_idle(s: Snapshot, status: JobStatus) -> Change:
    """The gateway says whether nobody has asked for long since the attempt's ranks began. What it does not say changes nothing: it may be restarting,
    or the ranks load the model."""
    if s.spec is None or status.outcome:
        return Change(status)  # nothing starts: until the spec is valid again, and never
    limit = s.spec.service.idle_seconds
    if status.asleep:
        if limit is None:
            return _woken(status, "the spec no longer says when it sleeps (idleSeconds)")
        asked = s.service is not None and s.service.waiting > 0
        return _woken(status, "a client asks for something") if asked else Change(status)
    attempt = status.attempt
    if limit is None or s.service is None or not s.service.idle or attempt is None or not is_open(attempt):
        return Change(status)
    if attempt.command != "run" or s.service.attempt != attempt.number:
        return Change(status)
    text = f"nobody has asked for anything for idleSeconds ({limit} s): trainers and rollouts are released"
    return Change(set_(status, asleep=True), (Event("Normal", reasons.IDLE, text),))


def _woken(status: JobStatus, why: str) -> Change:
    return Change(set_(status, asleep=False), (Event("Normal", reasons.WOKEN, why),))


def service_status(s: Snapshot, status: JobStatus) -> ServiceStatus:
    """What the status says of a service."""
    if s.spec is None or s.spec.task != "service":
        return status.service
    address = http_url(f"{names.gang(s.job.name, names.ROLE_GATEWAY)}.{s.job.namespace}", names.GATEWAY_PORT)
    if s.service is None:
        return status.service.model_copy(update={"address": address})
    return ServiceStatus.model_validate(
        s.service.model_dump(include=set(ServiceStatus.model_fields)) | {"address": address}
    )


def name_gateway(s: Snapshot, status: JobStatus) -> Change:
    """A pod that is named again after another one has a new number, too."""
    pod = gateway_pod(s, status)
    if pod is None or pod.uid == status.gateway_pod:
        return Change(status)
    return Change(set_(status, gateway_pod=pod.uid, gateway_number=status.gateway_number + 1))
