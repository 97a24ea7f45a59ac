"""ConfigMaps of a job as they are cached: control messages and reports, parsed, and when a report's heartbeat was seen to move."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_api import names
from rljob_api.protocol import Control, Progress, Report
from rljob_api.text import one_line
from rljob_api.type_errors import first_problem
from rljob_operator.cache.cache import strip_managed_fields
from rljob_operator.kube.api import Object


@dataclass(frozen=True, slots=True)
class CachedConfigMap:
    """One ConfigMap. Reports are untrusted: one that cannot be read is named and otherwise ignored."""

    object: Object
    """Without a report's data."""
    control: Control | None = None
    """If this is a control message."""
    report: Report | None = None
    pod: str = ""
    """Whose report it is or claims to be."""
    trouble: str = ""
    """What is wrong with the report."""
    last_heartbeat: float = 0.0
    """When the heartbeat was seen to move last, on the operator's clock."""


def cached(clock: Callable[[], float]) -> Callable[[Object, CachedConfigMap | None], CachedConfigMap]:
    def transform(obj: Object, before: CachedConfigMap | None) -> CachedConfigMap:
        text = (obj.get("data") or {}).get(names.REPORT_KEY)
        if text is None:
            return CachedConfigMap(strip_managed_fields(obj), parse_control(obj))
        parsed, pod, trouble = _parse(obj["metadata"]["name"], text)
        still = before is not None and _beat(before.report) == _beat(parsed)
        last_heartbeat = before.last_heartbeat if before and still else clock()
        return CachedConfigMap(strip_managed_fields(obj, "data"), None, parsed, pod, trouble, last_heartbeat)

    return transform


def predicate(before: CachedConfigMap, after: CachedConfigMap) -> bool:
    """A heartbeat and the numbers of a step alone call for no reconcile at once (see handlers.py)."""
    return before.trouble != after.trouble or _gist(before) != _gist(after)


def parse_control(obj: Object | None) -> Control | None:
    """None also when another release wrote it: then it is simply written again."""
    text: Any = ((obj or {}).get("data") or {}).get(names.CONTROL_KEY)
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


def _beat(report: Report | None) -> tuple[object, ...]:
    if report is None:
        return ()
    return report.pod_uid, report.boot_id, report.attempt, report.progress and report.progress.heartbeat


def _gist(note: CachedConfigMap) -> tuple[object, ...]:
    object_ = {k: v for k, v in note.object["metadata"].items() if k != "resourceVersion"}, note.object.get("data")
    r = note.report
    if r is None:
        return (object_,)
    return object_, r.pod, r.pod_uid, r.boot_id, r.attempt, r.state, r.result, r.failure, _milestones(r.progress)


def _milestones(p: Progress | None) -> tuple[object, ...]:
    if p is None:
        return ()
    stepped = p.step > (p.started_from or 0)
    return p.started_from, stepped, stage(p.phase), p.loading, p.export, p.evaluation, p.backend, p.checkpoints


def stage(phase: str) -> str:
    """A phase without the parts of a step, which change several times a step."""
    return phase if phase in ("fetching", "loading", "waiting", "finishing") else "stepping"
