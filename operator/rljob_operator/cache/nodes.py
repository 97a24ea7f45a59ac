"""A node's JSON, reduced to what decisions need, and what each pod of the cluster takes of its node."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from rljob_api import names
from rljob_api.leave_nodes import LeaveNodes, reason
from rljob_api.quantity import Thousandths, parse
from rljob_operator.cache.pods import Pod, condition_of, is_of_a_job
from rljob_operator.kube.api import Object
from rljob_operator.times import seconds
from rljob_placement import cluster as placement
from rljob_placement.cluster import Node as SchedulableNode
from rljob_placement.cluster import occupied, requests

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedNode:
    """The part of a node that the operator reads."""

    name: str
    schedulable: SchedulableNode
    """The node as the builtin scheduler sees it, as if no pods were on it."""
    lost_since: float | None = None
    """When it ceased to be Ready, in seconds since the epoch by the cluster's clock; None: it is ready."""
    answers_since: float = 0.0
    """When it became Ready, in seconds since the epoch by the cluster's clock; 0: it is not."""
    out_of_service: bool = False
    """It has the out-of-service taint, by which an administrator vouches that nothing runs there any more."""

    signs: str = ""
    """What the node itself says about why jobs should leave it."""
    devices: frozenset[str] = frozenset()
    """Resources that the node itself does not offer: its devices of Dynamic Resource Allocation."""

    @property
    def quarantine(self) -> str:
        """Why its owner wants jobs to leave it; empty: its owner does not."""
        return self.schedulable.quarantine

    def holding(self, pod: Pod) -> Pod:
        """A pod that is on this node, with whether it answers."""
        return replace(
            pod, lost_since=self.lost_since, answers_since=self.answers_since, out_of_service=self.out_of_service
        )

    def requested(self, why: str) -> "CachedNode":
        """The node if somebody asks for it to be left; empty: nobody does."""
        return replace(self, schedulable=replace(self.schedulable, quarantine=reason((self.signs, why))))

    def offering(self, free: Thousandths, size: Thousandths) -> "CachedNode":
        """The node with these devices in place of those that were known."""
        known = self.schedulable
        own = {name: amount for name, amount in known.size.items() if name not in self.devices}
        there = replace(known, free=own, size=own).offering(free, size)
        return replace(self, schedulable=there, devices=frozenset(name for name in size if not own.get(name)))


def parse_node(node: Object, leave: LeaveNodes) -> CachedNode:
    signs = leave.quarantine(node)
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready, since = _readiness(meta, status)
    return CachedNode(
        name=meta["name"],
        lost_since=None if ready else since,
        answers_since=since if ready else 0.0,
        out_of_service=OUT_OF_SERVICE in [taint["key"] for taint in spec.get("taints", [])],
        schedulable=placement.parse_node(node, {}, signs),
        signs=signs,
    )


def _readiness(meta: Object, status: Object) -> tuple[bool, float]:
    """Whether it is Ready, and since when."""
    ready = condition_of(status, "Ready")
    return ready.get("status") == "True", seconds(ready.get("lastTransitionTime") or meta.get("creationTimestamp", ""))


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """Node and requests of a pod; empty for one that is on no node or has ended. One that was released to a node counts there at once: the event that
    it is bound may come late, and its job may give up the assignment meanwhile."""

    node: str = ""
    requests: Thousandths | None = None


def parse_usage(pod: Object) -> Usage:
    """Of a pod with a part that cannot be read the rest counts: to ignore the pod would make its node look empty."""
    try:
        return _usage(pod)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        log.warning("pod %s counts without what cannot be read of it: %s", pod["metadata"]["name"], error)
        return _usage(_readable(pod))


def _usage(pod: Object) -> Usage:
    node = occupied(pod) or _released_to(pod)
    if not isinstance(node, str):
        raise TypeError(f"spec.nodeName is no text: {node!r}")
    return Usage(node, requests(pod["spec"])) if node else Usage()


def _released_to(pod: Object) -> str:
    """The node to which a job's pod was pinned when its gate was removed (schedulers/base.py); empty: none, it has ended, or no scheduler
    will bind it any more. Pods of others may have any annotation; a StatefulSet as owner has to exist, else the garbage collector deletes the pod."""
    meta = pod.get("metadata") or {}
    if names.ANNOTATION_UNGATED not in (meta.get("annotations") or {}) or not is_of_a_job(pod):
        return ""
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if ended or "deletionTimestamp" in meta or names.GATE in gates:
        return ""
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
    conditions = (c for term in required.get("nodeSelectorTerms", []) for c in term.get("matchFields", []))
    return next((str(c["values"][0]) for c in conditions if c["operator"] == "In"), "")


def _readable(pod: Object) -> Object:
    spec, status = _dict(pod.get("spec")), _dict(pod.get("status"))
    node = spec.get("nodeName")
    kept: Object = {
        kind: [_container(c) for c in spec.get(kind) or [] if isinstance(c, dict)]
        for kind in ("containers", "initContainers")
    }
    whole = {"requests": _quantities(_dict(spec.get("resources")).get("requests"))}
    kept |= {"overhead": _quantities(spec.get("overhead")), "resources": whole}
    return {"spec": kept | {"nodeName": node if isinstance(node, str) else ""}, "status": status}


def _container(container: Object) -> Object:
    resources = _dict(container.get("resources"))
    amounts = {kind: _quantities(resources.get(kind)) for kind in ("requests", "limits")}
    return {"restartPolicy": container.get("restartPolicy"), "resources": amounts}


def _quantities(amounts: Any) -> Object:
    return {name: amount for name, amount in _dict(amounts).items() if _is_quantity(amount)}


def _is_quantity(amount: object) -> bool:
    try:
        parse(amount)
    except ValueError:
        return False
    return True


def _dict(value: Any) -> Object:
    return value if isinstance(value, dict) else {}
