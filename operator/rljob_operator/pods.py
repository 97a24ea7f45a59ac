"""A pod's JSON, and that of its node when it matters, reduced to what decisions need."""

from typing import Any

from rljob_api import names
from rljob_operator.snapshot import Pod
from rljob_operator.times import seconds

Object = dict[str, Any]
CALM = ("ContainerCreating", "PodInitializing")
"""Reasons for waiting that are nobody's trouble."""


def parse_pod(pod: Object, node: Object | None = None) -> Pod:
    """`node`: empty if it does not exist any more, None if nobody looked."""
    meta, status = pod["metadata"], pod.get("status", {})
    container: Object = next(iter(status.get("containerStatuses", [])), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=meta["labels"].get(names.LABEL_ROLE, ""),
        ordinal=int(meta["name"].rsplit("-", 1)[1]),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        ready=_condition(status, "Ready").get("status") == "True",
        running="running" in state,
        deleting="deletionTimestamp" in meta,
        disrupted=_disrupted(status),
        lost_since=_lost_since(meta, node),
        waiting=_waiting(state.get("waiting", {})),
        exited=_exited(ended) if ended else "",
        unschedulable=_unschedulable(status),
        template_hash=meta.get("annotations", {}).get(names.ANNOTATION_TEMPLATE_HASH, ""),
    )


def _condition(status: Object, kind: str) -> Object:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def _disrupted(status: Object) -> str:
    condition = _condition(status, "DisruptionTarget")
    if condition.get("status") != "True":
        return ""
    return condition.get("message") or condition.get("reason") or "disrupted"


def _lost_since(meta: Object, node: Object | None) -> float | None:
    """A node is silent since its Ready condition left `True`."""
    if node is None:
        return None
    if not node:
        return 0.0
    ready = _condition(node.get("status", {}), "Ready")
    since: str = ready.get("lastTransitionTime") or meta["creationTimestamp"]
    return None if ready.get("status") == "True" else seconds(since)


def _waiting(waiting: Object) -> str:
    if not waiting or waiting.get("reason") in CALM:
        return ""
    return ": ".join(t for t in (waiting.get("reason"), waiting.get("message")) if t)


def _exited(terminated: Object) -> str:
    return f"{terminated.get('reason', 'Error')} (exit code {terminated.get('exitCode')})"


def _unschedulable(status: Object) -> str:
    condition = _condition(status, "PodScheduled")
    return condition.get("message", "") if condition.get("status") == "False" else ""
