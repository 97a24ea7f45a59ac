"""The writes of one pass, in their order: status, children, deletions, events."""

import logging
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.api import Api, ApiError, Conflict, NotFound, Object
from rljob_operator.decide import Event
from rljob_operator.snapshot import Pod, Snapshot
from rljob_operator.times import stamp

log = logging.getLogger(__name__)


async def write_status(api: Api, job: Object, old: JobStatus, new: JobStatus) -> None:
    """With the resourceVersion that was read: if anybody wrote since, Conflict, and the pass begins again."""
    if new != old or "status" not in job:
        await api.replace(job | {"status": new.dump()}, "status")


async def write_children(api: Api, s: Snapshot, wanted: list[Object]) -> tuple[str, ...]:
    """Create what is missing, correct what is ours, leave alone what is not; the last are returned, each as a sentence.

    Pods are not started beside a conflict: they would find somebody else's object in the place of ours.
    """
    conflicts: list[str] = []
    for child in wanted:
        if conflicts and child["kind"] == "StatefulSet":
            continue
        if conflict := await _write_child(api, s, child):
            conflicts.append(conflict)
    return tuple(conflicts)


async def _write_child(api: Api, s: Snapshot, child: Object) -> str:
    kind, name = child["kind"], child["metadata"]["name"]
    live = s.children.get((kind, name))
    if live is None:
        return await _create(api, child)
    if not controls(s.job, live):
        return f"{kind} {name} exists and is not controlled by this job; delete it or rename the job"
    if not covers(live, child):
        await api.apply(child, dict(live))
    return ""


async def _create(api: Api, child: Object) -> str:
    kind, name = child["kind"], child["metadata"]["name"]
    try:
        await api.create(child)
    except Conflict:
        if kind != "Secret":  # its name carries our uid, and we may not look
            return f"{kind} {name} exists and has not this job's labels; delete it or rename the job"
    return ""


def controls(job: RLJobMeta, live: Mapping[str, Any]) -> bool:
    owners = live["metadata"].get("ownerReferences", [])
    return any(o.get("controller") and o["uid"] == job.uid for o in owners)


def covers(live: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is so already; what the API server or others added does not matter."""
    if isinstance(wanted, dict):
        return isinstance(live, Mapping) and all(covers(live.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(live, list) and len(live) == len(wanted)
        return same and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
    return bool(live == wanted) or (live is None and wanted in ("", False))


async def delete_pods(api: Api, namespace: str, pods: tuple[Pod, ...]) -> None:
    for pod in pods:
        try:
            await api.delete_pod(namespace, pod.name, pod.uid)
        except (NotFound, Conflict):
            log.info("pod %s is gone already", pod.name)


async def post_events(api: Api, job: RLJobMeta, events: tuple[Event, ...], now: float) -> None:
    """For people; one that cannot be written is not worth a second pass."""
    for event in events:
        log.info("%s/%s: %s: %s", job.namespace, job.name, event.reason, event.message)
        try:
            await api.create(_event(job, event, now))
        except ApiError as error:
            log.warning("event %s of %s/%s is lost: %s", event.reason, job.namespace, job.name, error)


def _event(job: RLJobMeta, event: Event, now: float) -> Object:
    about = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "namespace": job.namespace,
        "uid": job.uid,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{uuid.uuid4().hex[:16]}", "namespace": job.namespace},
        "involvedObject": about,
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }
