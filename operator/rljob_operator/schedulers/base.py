"""The interface of scheduler backends, and how pods get onto nodes: affinities of pods by the names of nodes, and scheduling gates.

Gates keep pods from the cluster's scheduler until their nodes are chosen. One patch then pins a pod to its node and removes the gate. The API server
lets a StatefulSet's pod be pinned only while it is gated, and only once. Pods of a gang with spares, and those of servers of several pods, are gated
whoever schedules them: their StatefulSet may have to make more of them than the job needs (see policies/pods.py), and what stays gated holds no node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api import names
from rljob_api.backends import FINALIZERS
from rljob_api.sizing.layout import server_nodes
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.cache.nodes import REQUIRED
from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Object
from rljob_operator.times import stamp


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Additions to a pod template."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    """Fields of the pod's spec."""


class Scheduler:
    """One backend. Pure: its answers follow from the job alone. The defaults add nothing, which leaves pods to the cluster's own scheduler. What is
    known of it without its code is in rljob_api/backends.py."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        """What to add to the pod template of a role."""
        return PodSettings()

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """Objects to create alongside the StatefulSets: apiVersion, kind, metadata.name and body. Labels and owner are added by `render`."""
        return []


def pinned(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The affinity, which only this node satisfies. DaemonSets pin their pods so, too."""
    return _with_names(affinity, [("In", node)])


def avoiding(affinity: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """The affinity, which none of these nodes satisfies."""
    return _with_names(affinity, [("NotIn", node) for node in sorted(nodes)])


def _with_names(affinity: Mapping[str, Any], names: list[tuple[str, str]]) -> dict[str, Any]:
    """The affinity with a further condition for each name (the API server takes one name in each) in every required term, since terms are
    alternatives."""
    conditions = [{"key": "metadata.name", "operator": operator, "values": [name]} for operator, name in names]
    of_nodes = affinity.get("nodeAffinity", {})
    terms = of_nodes.get(REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*term.get("matchFields", []), *conditions]} for term in terms]
    return {**affinity, "nodeAffinity": of_nodes | {REQUIRED: {"nodeSelectorTerms": terms}}}


def has_gate(spec: RLJobSpec, role: str) -> bool:
    """Whether the role's pods are made with our gate."""
    if not names.is_placed(role):
        return False
    spares = role == names.ROLE_TRAINER and spec.scheduling.spare_nodes > 0
    return spec.scheduling.facts.assigns_nodes or spares or server_nodes(spec, role) > 1


def operations(pod: Pod, node: str, now: float, head: bool = False) -> list[dict[str, Any]]:
    """A JSON patch that ungates exactly this pod, by its uid, and fails if it is not gated any more.

    Args:
        node: to which the pod is pinned; empty: another scheduler chooses it
        now: seconds since the epoch, which are noted
        head: whether it is the head of a server of several pods, and is labelled so

    It also clears managedFields (Kubernetes documentation, Server-Side Apply, Clearing managedFields). Nobody applies a pod, and they are half of the
    object: with them, later writes of scheduler and kubelet cost the API server half as much again.
    """
    gate = f"/spec/schedulingGates/{pod.gates.index(names.GATE)}"
    note = "/metadata/annotations/" + names.ANNOTATION_UNGATED.replace("~", "~0").replace("/", "~1")
    pin = [{"op": "add", "path": "/spec/affinity", "value": pinned(pod.affinity, node)}] if node else []
    label = "/metadata/labels/" + names.LABEL_HEAD.replace("/", "~1")
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"{gate}/name", "value": names.GATE},
        *pin,
        *([{"op": "add", "path": label, "value": "true"}] if head else []),
        {"op": "add", "path": note, "value": stamp(now)},
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
        {"op": "remove", "path": gate},
    ]


def is_kept(pod: Pod) -> bool:
    """Whether the finalizer of a backend keeps the pod, which was deleted and has ended."""
    return pod.deleting and pod.has_ended and not FINALIZERS.isdisjoint(pod.finalizers)


def without_finalizer(pod: Pod) -> list[dict[str, Any]]:
    """A JSON patch that takes the first finalizer of a backend from exactly this pod, and fails if it has lost it."""
    place, name = next((i, name) for i, name in enumerate(pod.finalizers) if name in FINALIZERS)
    path = f"/metadata/finalizers/{place}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": path, "value": name},
        {"op": "remove", "path": path},
    ]


def is_gated(pod: Mapping[str, Any] | None, uid: str) -> bool:
    """Whether a live object is the pod of that uid and still has our gate."""
    gates = pod["spec"].get("schedulingGates", []) if pod and pod["metadata"]["uid"] == uid else []
    return any(gate["name"] == names.GATE for gate in gates)
