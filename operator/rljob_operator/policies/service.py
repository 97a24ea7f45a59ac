"""A service that nobody asks for anything sleeps: it is suspended, as by a request, while its gateway stays. The next request wakes it.

One pod is its gateway. Each naming of another one has a number, in the status before the pod hears of it.
"""

from rljob_api import names, reasons
from rljob_api.address import http_url
from rljob_api.progress_status import ServiceStatus
from rljob_api.status import JobStatus
from rljob_operator.model.ordinals import gateway_pod
from rljob_operator.model.snapshot import Snapshot, is_open
from rljob_operator.policies.change import Change, Event, set_
from rljob_operator.times import seconds


def sleep_when_idle(s: Snapshot, status: JobStatus) -> Change:
    """The gateway says how long nobody has asked. What it does not say changes nothing: it may be restarting."""
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
    since = seconds(attempt.started_at)  # somebody may have resumed the job by hand
    if attempt.command != "run" or s.now < since + limit:
        return Change(status, due=(since + limit,) if s.now < since + limit else ())
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
