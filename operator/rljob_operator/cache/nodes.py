"""A node's JSON, reduced to what decisions need."""

from dataclasses import dataclass, replace

from rljob_api.leave_nodes import LeaveNodes
from rljob_operator.cache.pods import condition_of
from rljob_operator.kube.api import Object
from rljob_operator.times import seconds
from rljob_placement import cluster as placement
from rljob_placement.cluster import Node as SchedulableNode

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
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

    @property
    def quarantine(self) -> str:
        """Why its owner wants jobs to leave it; empty: its owner does not."""
        return self.schedulable.quarantine


def parse_node(node: Object, leave: LeaveNodes) -> Node:
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready, since = _readiness(meta, status)
    return Node(
        name=meta["name"],
        lost_since=None if ready else since,
        answers_since=since if ready else 0.0,
        out_of_service=any(t["key"] == OUT_OF_SERVICE for t in spec.get("taints", [])),
        schedulable=replace(placement.parse_node(node, {}), quarantine=leave.quarantine(node)),
    )


def _readiness(meta: Object, status: Object) -> tuple[bool, float]:
    """Whether it is Ready, and since when."""
    ready = condition_of(status, "Ready")
    return ready.get("status") == "True", seconds(ready.get("lastTransitionTime") or meta.get("creationTimestamp", ""))
