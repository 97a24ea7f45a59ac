"""Scheduling gates keep pods from the cluster's scheduler until their nodes are chosen. One patch then pins a pod to its node and removes the gate.

The API server lets a StatefulSet's pod be pinned only while it is gated, and only once.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api import names
from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.cache.pods import Pod
from rljob_operator.schedulers.affinity import pinned
from rljob_operator.schedulers.base import PodSettings, Scheduler
from rljob_operator.times import stamp


class Builtin(Scheduler):
    """Pods are gated until the other modules of this package have chosen their nodes."""

    fields = frozenset({"priority", "topologyLevels"})
    starts_whole_gangs = True

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        return PodSettings(pod={"schedulingGates": [{"name": names.GATE}]})


def operations(pod: Pod, node: str, now: float) -> list[dict[str, Any]]:
    """A JSON patch that ungates exactly this pod, by its uid, and fails if it is not gated any more. `now`: seconds since the epoch, which are noted.

    It also clears managedFields (Kubernetes documentation, Server-Side Apply, Clearing managedFields). Nobody applies a pod, and they are half of the
    object: with them, later writes of scheduler and kubelet cost the API server half as much again.
    """
    gate = f"/spec/schedulingGates/{pod.gates.index(names.GATE)}"
    note = "/metadata/annotations/" + names.ANNOTATION_UNGATED.replace("~", "~0").replace("/", "~1")
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.uid},
        {"op": "test", "path": f"{gate}/name", "value": names.GATE},
        {"op": "add", "path": "/spec/affinity", "value": pinned(pod.affinity, node)},
        {"op": "add", "path": note, "value": stamp(now)},
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
        {"op": "remove", "path": gate},
    ]


def is_gated(pod: Mapping[str, Any] | None, uid: str) -> bool:
    """Whether a live object is the pod of that uid and still has our gate."""
    gates = pod["spec"].get("schedulingGates", []) if pod and pod["metadata"]["uid"] == uid else []
    return any(gate["name"] == names.GATE for gate in gates)
