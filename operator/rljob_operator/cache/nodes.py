"""A node's JSON, reduced to what decisions need."""

from dataclasses import dataclass

from rljob_operator.cache.pods import condition_of
from rljob_operator.kube.api import Object
from rljob_operator.times import seconds
from rljob_placement import cluster as place
from rljob_placement.cluster import Node as Place

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What matters of one node."""

    name: str
    place: Place
    """What it offers to pods, empty."""
    lost_since: float | None = None
    """Since when it has not answered, by the cluster's clock."""
    out_of_service: bool = False
    """A taint vouches that nothing runs there any more."""


def parse_node(node: Object) -> Node:
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    return Node(
        name=meta["name"],
        lost_since=_lost_since(meta, status),
        out_of_service=any(t["key"] == OUT_OF_SERVICE for t in spec.get("taints", [])),
        place=place.parse_node(node, {}),
    )


def _lost_since(meta: Object, status: Object) -> float | None:
    """A node is silent since its Ready condition left `True`."""
    ready = condition_of(status, "Ready")
    since: str = ready.get("lastTransitionTime") or meta.get("creationTimestamp", "")
    return None if ready.get("status") == "True" else seconds(since)
