"""ConfigMaps of a job as they are cached: control messages and reports, parsed, and when a report's heartbeat last advanced."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from rljob_api import names
from rljob_api.protocol import Control, Progress, Report
from rljob_api.text import one_line
from rljob_api.type_errors import first_problem
from rljob_operator.cache.cache import strip_managed_fields
from rljob_operator.kube.api import Object


@dataclass(frozen=True, slots=True)
class CachedConfigMap:
    """One ConfigMap. Reports are untrusted: one that cannot be read is ignored, except that its problem is shown to users."""

    object: Object
    """The ConfigMap; of a report without its data."""
    control: Control | None = None
    """The control message, if this is one that can be read."""
    report: Report | None = None
    """The report, if this is one that can be read and is under its pod's name."""
    pod: str = ""
    """The pod whose report this is, or claims to be."""
    problem: str = ""
    """Why the report cannot be read; empty: it can."""
    last_heartbeat: float = 0.0
    """When the operator last saw the heartbeat advance, in seconds since the epoch by its own clock."""


def transform(clock: Callable[[], float]) -> Callable[[Object, CachedConfigMap | None], CachedConfigMap]:
    """The transform of the cache. `clock`: seconds since the epoch."""

    def parsed(obj: Object, before: CachedConfigMap | None) -> CachedConfigMap:
        text = (obj.get("data") or {}).get(names.REPORT_KEY)
        if text is None:
            return CachedConfigMap(strip_managed_fields(obj), parse_control(obj))
        report, pod, problem = _parse(obj["metadata"]["name"], text)
        unchanged = before is not None and _heartbeat(before.report) == _heartbeat(report)
        last_heartbeat = before.last_heartbeat if before and unchanged else clock()
        return CachedConfigMap(strip_managed_fields(obj, "data"), None, report, pod, problem, last_heartbeat)

    return parsed


def predicate(before: CachedConfigMap, after: CachedConfigMap) -> bool:
    """Heartbeats and the numbers of a step alone call for no reconcile at once: see `EventHandlers.handle`."""
    return before.problem != after.problem or _significant(before) != _significant(after)


def control_text(obj: Object) -> str:
    """The text of the control message in a ConfigMap; empty: it has none, or is a report."""
    data = obj.get("data") or {}
    return "" if names.REPORT_KEY in data else str(data.get(names.CONTROL_KEY) or "")


def parse_control(obj: Object) -> Control | None:
    """The control message in a ConfigMap; None if there is none, or another release wrote one that we cannot read: it is then written again."""
    text = control_text(obj)
    try:
        return Control.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _parse(name: str, text: str) -> tuple[Report | None, str, str]:
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        return None, name, one_line(f"the report in ConfigMap {name} cannot be read: {first_problem(error)}")
    if report.protocol != names.PROTOCOL:
        return None, report.pod, _mismatch(report)
    return (report if name == names.report(report.pod) else None), report.pod, ""


def _mismatch(report: Report) -> str:
    return (
        f"pod {report.pod} speaks protocol {report.protocol} and this operator {names.PROTOCOL}: "
        "use a trainer image and an operator of the same release"
    )


def _heartbeat(report: Report | None) -> tuple[object, ...]:
    if report is None:
        return ()
    return report.pod_uid, report.boot_id, report.attempt, report.progress and report.progress.heartbeat


def _significant(cached: CachedConfigMap) -> tuple[object, ...]:
    """What calls for a reconcile when it changes."""
    object_ = {k: v for k, v in cached.object["metadata"].items() if k != "resourceVersion"}, cached.object.get("data")
    r = cached.report
    if r is None:
        return (object_,)
    asked = r.service and (r.service.idle, r.service.waiting > 0)
    return object_, r.pod, r.pod_uid, r.boot_id, r.attempt, r.state, r.result, r.failure, _milestones(r.progress), asked


def _milestones(p: Progress | None) -> tuple[object, ...]:
    if p is None:
        return ()
    stepped = p.step > (p.started_from or 0)
    kept = p.loading, p.export, p.evaluation, p.backend, p.checkpoints, p.warnings
    load = [(role, one.needed, one.enough) for role, one in p.workers.items()]
    return p.started_from, stepped, coarse_phase(p.phase), *kept, load


def coarse_phase(phase: str) -> str:
    """A phase of `Progress`, with `stepping` for all phases within a step: those change several times per step."""
    return phase if phase in ("fetching", "loading", "waiting", "finishing") else "stepping"
