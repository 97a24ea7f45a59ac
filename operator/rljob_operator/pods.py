"""The JSON of pods and nodes, reduced to what decisions need."""

from typing import Any

from rljob_api import names
from rljob_api.placement import cluster as place
from rljob_operator.snapshot import Node, Pod
from rljob_operator.times import seconds

Object = dict[str, Any]
CALM = ("ContainerCreating", "PodInitializing")
"""Reasons for waiting that are nobody's trouble."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
CONTAINERS = (names.TRAINER_CONTAINER, names.ROLLOUT_CONTAINER)


def parse_pod(pod: Object) -> Pod:
    """Whether its node answers is not said here. Containers that others inject, as service meshes do, are not ours."""
    meta, status = pod["metadata"], pod.get("status", {})
    container: Object = next((c for c in status.get("containerStatuses", []) if c["name"] in CONTAINERS), {})
    state = container.get("state", {})
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    ordinal, notes = meta["name"].rpartition("-")[2], meta.get("annotations") or {}
    gates = tuple(gate["name"] for gate in pod.get("spec", {}).get("schedulingGates", []))
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        role=(meta.get("labels") or {}).get(names.LABEL_ROLE, ""),
        ordinal=int(ordinal) if ordinal.isdecimal() else -1,
        node=pod.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        phase=status.get("phase", "Pending"),
        ready=_condition(status, "Ready").get("status") == "True",
        running="running" in state,
        deleting="deletionTimestamp" in meta,
        disrupted=_disrupted(status),
        waiting=_waiting(state.get("waiting", {})),
        exited=_exited(ended) if ended else "",
        unschedulable=_unschedulable(status),
        template_hash=notes.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        gates=gates,
        affinity=pod["spec"].get("affinity", {}) if gates else {},
        released=_released(notes.get(names.ANNOTATION_RELEASED)),
    )


def parse_node(node: Object) -> Node:
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    return Node(
        name=meta["name"],
        lost_since=_lost_since(meta, status),
        out_of_service=any(t["key"] == OUT_OF_SERVICE for t in spec.get("taints", [])),
        place=place.parse_node(node, {}),
    )


def _condition(status: Object, kind: str) -> Object:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def _disrupted(status: Object) -> str:
    condition = _condition(status, "DisruptionTarget")
    if condition.get("status") != "True":
        return ""
    return condition.get("message") or condition.get("reason") or "disrupted"


def _lost_since(meta: Object, status: Object) -> float | None:
    """A node is silent since its Ready condition left `True`."""
    ready = _condition(status, "Ready")
    since: str = ready.get("lastTransitionTime") or meta.get("creationTimestamp", "")
    return None if ready.get("status") == "True" else seconds(since)


def _released(note: str | None) -> float | None:
    """Whoever may write a pod may write anything here."""
    try:
        return seconds(note) if note else None
    except (ValueError, OverflowError):
        return None


def _waiting(waiting: Object) -> str:
    if not waiting or waiting.get("reason") in CALM:
        return ""
    return ": ".join(t for t in (waiting.get("reason"), waiting.get("message")) if t)


def _exited(terminated: Object) -> str:
    return f"{terminated.get('reason', 'Error')} (exit code {terminated.get('exitCode')})"


def _unschedulable(status: Object) -> str:
    """A gate is nobody's trouble."""
    condition = _condition(status, "PodScheduled")
    waits = condition.get("status") != "False" or condition.get("reason") == "SchedulingGated"
    return "" if waits else condition.get("message", "")
