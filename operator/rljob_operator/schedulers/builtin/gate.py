"""A gate keeps pods from the cluster's scheduler until their node is chosen; one patch then pins a pod to it and removes the gate.

The API server lets a StatefulSet's pod be pinned only while it is gated, and only once.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.cache.pods import Pod
from rljob_operator.schedulers.base import PodSettings, Scheduler
from rljob_operator.times import stamp

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Builtin(Scheduler):
    """Chooses nodes itself: see the other modules of this package."""

    fields = frozenset({"priority", "topologyLevels"})

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        return PodSettings(pod={"schedulingGates": [{"name": names.GATE}]})


def operations(pod: Pod, node: str, now: float) -> list[dict[str, Any]]:
    """A JSON patch of exactly this pod (by uid), which fails if it is not gated any more. It also notes when the pod was released, and ends the
    bookkeeping of who owns which field of it (Kubernetes documentation, Server-Side Apply, Clearing managedFields): nobody applies a pod, and the
    book, half of the object, makes later writes of scheduler and kubelet cost the API server half as much again.
    """
    gate = f"/spec/schedulingGates/{pod.gates.index(names.GATE)}"
    note = "/metadata/annotations/" + names.ANNOTATION_UNGATED.replace("~", "~0").replace("/", "~1")
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"{gate}/name", "value": names.GATE},
        {"op": "add", "path": "/spec/affinity", "value": pinned(dict(pod.affinity), node)},
        {"op": "add", "path": note, "value": stamp(now)},
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
        {"op": "remove", "path": gate},
    ]


def is_gated(pod: Mapping[str, Any] | None, uid: str) -> bool:
    """Whether this is still the pod of that uid, and we may release it."""
    gates = pod["spec"].get("schedulingGates", []) if pod and pod["metadata"]["uid"] == uid else []
    return any(gate["name"] == names.GATE for gate in gates)


def pinned(affinity: dict[str, Any], node: str) -> dict[str, Any]:
    """With one more condition in every required term, since terms are alternatives: the node's name, as in a DaemonSet's pods."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_nodes = affinity.get("nodeAffinity", {})
    terms = of_nodes.get(REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*term.get("matchFields", []), here]} for term in terms]
    return affinity | {"nodeAffinity": of_nodes | {REQUIRED: {"nodeSelectorTerms": terms}}}
