"""Live reads of everything about one job, parsed into a `Snapshot`. Later these reads can come from indices; nothing else would change."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api import names
from rljob_api.protocol import Control, Report
from rljob_api.spec import RLJobSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_api.validate import violations
from rljob_operator.api import Api, NotFound, Object
from rljob_operator.decide.change import is_open
from rljob_operator.decide.progress import current
from rljob_operator.memory import Memory
from rljob_operator.pods import parse_pod
from rljob_operator.queue import Key
from rljob_operator.snapshot import Pod, Snapshot

CHILD_KINDS = ("ConfigMap", "Service", "ServiceAccount", "Role", "RoleBinding", "StatefulSet")
KNOWN_META = {
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "annotations",
}


async def observe(api: Api, job: Object, memory: Memory, now: float, progress_interval: float) -> Snapshot:
    """`job` is the live object. Children are listed by label, whoever owns them."""
    meta = RLJobMeta.model_validate({k: v for k, v in job["metadata"].items() if k in KNOWN_META})
    key = (meta.namespace, meta.name)
    selector = names.selector(meta.name)
    lists = await asyncio.gather(*(api.find(kind, meta.namespace, selector) for kind in ("Pod", *CHILD_KINDS)))
    children = {(o["kind"], o["metadata"]["name"]): o for found in lists[1:] for o in found}
    reports, unreadable = _reports(children)
    found = violations(job.get("spec", {}), meta.name)
    snapshot = Snapshot(
        job=meta,
        spec=None if found else RLJobSpec.model_validate(job["spec"]),
        violations=tuple(found),
        spec_suspend=bool(job.get("spec", {}).get("suspend")),
        status=JobStatus.model_validate(job.get("status") or {}),
        pods=tuple(await asyncio.gather(*(_pod(api, pod) for pod in lists[0]))),
        reports=reports,
        unreadable=unreadable,
        control=_control(children.get(("ConfigMap", names.control(meta.name)))),
        children=children,
        conflicts=memory.conflicts.get(key, ()),
        progress_interval=progress_interval,
        fresh_token=secrets.token_urlsafe(32),
        now=now,
    )
    return _with_beat(snapshot, memory, key)


def _with_beat(s: Snapshot, memory: Memory, key: Key) -> Snapshot:
    attempt = s.status.attempt
    if attempt is None or not is_open(attempt):
        return s
    progress = current(s, attempt)
    age = memory.beat_age(key, (s.job.uid, attempt.number), progress.beat if progress else None, s.now)
    return Snapshot(**(vars(s) | {"beat_age": age}))


async def _pod(api: Api, pod: Object) -> Pod:
    """A pod on a lost node is not ready, so only then is the node worth a look."""
    parsed = parse_pod(pod)
    node = pod["spec"].get("nodeName")
    if parsed.ready or not node:
        return parsed
    try:
        return parse_pod(pod, await api.node(node))
    except NotFound:
        return parse_pod(pod, {})


def _reports(children: Mapping[tuple[str, str], Object]) -> tuple[dict[str, Report], dict[str, str]]:
    """Untrusted: one that cannot be read is named and otherwise ignored."""
    reports, unreadable = {}, {}
    for (kind, name), child in children.items():
        text = child.get("data", {}).get(names.REPORT_KEY) if kind == "ConfigMap" else None
        if text is None:
            continue
        try:
            report = Report.model_validate_json(text)
        except ValidationError as error:
            unreadable[name] = f"the report in ConfigMap {name} cannot be read: {error.errors()[0]['msg']}"
            continue
        if report.protocol != names.PROTOCOL:
            unreadable[report.pod] = _mismatch(report)
        elif name == names.report(report.pod):
            reports[report.pod] = report
    return reports, unreadable


def _mismatch(report: Report) -> str:
    return (
        f"pod {report.pod} speaks protocol {report.protocol} and this operator {names.PROTOCOL}: "
        "use a trainer image and an operator of the same release"
    )


def _control(child: Object | None) -> Control | None:
    """None also when another release wrote it: then it is simply written again."""
    text: Any = (child or {}).get("data", {}).get(names.CONTROL_KEY)
    try:
        return Control.model_validate_json(text) if text else None
    except ValidationError:
        return None
