"""Nodes and what is free on them, from Kubernetes objects. Amounts are thousandths (see rljob_api/quantity.py)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_api.quantity import Thousandths, add, most, parse
from rljob_placement.devices import Devices

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `free`: allocatable less the requests of the pods on it and of those on their way to it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[ApiObject, ...] = ()
    free: Mapping[str, int] = field(default_factory=dict)
    size: Mapping[str, int] = field(default_factory=dict)
    """Allocatable: what would be free on it without any pods."""
    closed: str = ""
    """Why it takes no new pods, such as `cordoned`; empty: it may."""
    quarantine: str = ""
    """Why pods should go elsewhere if they can; empty: they need not."""

    def offering(self, free: Mapping[str, int], size: Mapping[str, int]) -> "Node":
        """The node with its devices of Dynamic Resource Allocation, those that are free and all, by resource. What the node offers itself stays: it
        is not offered by devices, too. A kubelet still lists 0 of what a device plugin that is gone has offered, which is no offer."""
        devices = {name for name in size if not self.size.get(name)}
        return replace(
            self,
            free={**self.free, **{name: free[name] for name in devices}},
            size={**self.size, **{name: size[name] for name in devices}},
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """All nodes, by name."""

    nodes: tuple[Node, ...]

    @staticmethod
    def of(nodes: Iterable[ApiObject], pods: Iterable[ApiObject]) -> "Cluster":
        """The cluster, from its nodes and the pods of all namespaces. Pods that are on no node, or have ended, take nothing."""
        taken: dict[str, Thousandths] = {}
        for pod in pods:
            if name := occupied(pod):
                taken[name] = add(taken.get(name, {}), requests(pod["spec"]))
        return Cluster(tuple(parse_node(n, taken.get(n["metadata"]["name"], {})) for n in nodes))

    def without(self, taken: Mapping[str, Thousandths]) -> "Cluster":
        """The cluster with this much less free, by node."""
        if not taken:
            return self
        return Cluster(tuple(less(n, taken[n.name]) if n.name in taken else n for n in self.nodes))

    def offering(self, devices: Devices) -> "Cluster":
        """The cluster with its devices, without those that claims hold."""
        free = dict(devices.nodes)
        for held in devices.allocations:
            free[held.node] = add(free[held.node], {name: -amount for name, amount in held.amounts.items()})
        offers = ((n, devices.nodes.get(n.name, {})) for n in self.nodes)
        return Cluster(tuple(n.offering(free.get(n.name, {}), size) for n, size in offers))

    def joined(self, other: "Cluster") -> "Cluster":
        """The cluster with what is free in both: parts of the same nodes."""
        pairs = zip(self.nodes, other.nodes, strict=True)
        return Cluster(tuple(replace(one, free=add(dict(one.free), dict(two.free))) for one, two in pairs))

    def closing(self, names: Collection[str], why: str) -> "Cluster":
        """The cluster with some nodes closed, and why."""
        return Cluster(tuple(replace(n, closed=n.closed or why) if n.name in names else n for n in self.nodes))

    def sound(self) -> "Cluster":
        """The cluster with quarantined nodes closed."""
        quarantined = {n.name for n in self.nodes if n.quarantine}
        return self.closing(quarantined, "quarantined") if quarantined else self


def parse_node(obj: ApiObject, taken: Thousandths, quarantine: str = "") -> Node:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    ready = next((c["status"] for c in status.get("conditions", []) if c["type"] == "Ready"), "Unknown")
    allocatable = {k: parse(v) for k, v in status.get("allocatable", {}).items()}
    return Node(
        name=obj["metadata"]["name"],
        labels=obj["metadata"].get("labels", {}),
        taints=tuple(t for t in spec.get("taints", []) if t.get("effect") in ("NoSchedule", "NoExecute")),
        free={k: v - taken.get(k, 0) for k, v in allocatable.items()} if taken else allocatable,
        size=allocatable,
        closed="cordoned" if spec.get("unschedulable") else "" if ready == "True" else "not ready",
        quarantine=quarantine,
    )


OCCUPYING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that take resources, see `occupied`."""


def essential(pod: ApiObject) -> dict[str, Any]:
    """The part of a pod that `Cluster.of` reads, which is a small one of a large object."""
    spec = {key: pod["spec"][key] for key in ("nodeName", "overhead", "resources") if key in pod["spec"]}
    for kind in ("containers", "initContainers"):
        containers = pod["spec"].get(kind) or []
        spec[kind] = [{key: c[key] for key in ("resources", "restartPolicy") if key in c} for c in containers]
    return {"spec": spec, "status": {"phase": pod.get("status", {}).get("phase")}}


def occupied(pod: ApiObject) -> str:
    """Name of the node on which a pod takes resources; empty: it is on none yet, or has ended."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    node: str = "" if ended else pod["spec"].get("nodeName", "")
    return node


def less(node: Node, taken: Thousandths) -> Node:
    """The node with this much less free."""
    return replace(node, free={k: v - taken.get(k, 0) for k, v in node.free.items()})


def requests(pod: ApiObject) -> Thousandths:
    """Requests of a pod's spec as kube-scheduler counts them: those of containers and sidecars together, or of the largest init container if that is
    more; pod-level requests in their place (KEP-2837); the overhead; and one of `pods`."""
    total: Thousandths = {}
    for container in pod.get("containers", []):
        total = add(total, _container(container))
    largest: Thousandths = {}
    sidecars: Thousandths = {}
    for container in pod.get("initContainers", []):
        if container.get("restartPolicy") == "Always":
            sidecars = add(sidecars, _container(container))
            largest = most(largest, sidecars)
        else:
            largest = most(largest, add(sidecars, _container(container)))
    whole = pod.get("resources", {}).get("requests", {})
    counted = most(add(total, sidecars), largest) | {k: _amount(v) for k, v in whole.items()}
    overhead = {k: _amount(v) for k, v in pod.get("overhead", {}).items()}
    return add(add(counted, overhead), {"pods": 1000})


def _container(container: ApiObject) -> Thousandths:
    """Requests of a container. A limit without a request counts as the request."""
    resources = container.get("resources", {})
    return {k: _amount(v) for k, v in {**resources.get("limits", {}), **resources.get("requests", {})}.items()}


def _amount(quantity: Any) -> int:
    """A quantity, at least 0: a negative request would free capacity."""
    return max(0, parse(quantity))
