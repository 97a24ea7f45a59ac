"""A namespace of a real control plane whose scheduler places pods, and an operator next to it. Only kubelets are missing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from api.specs import raw_spec
from e2e.control_plane import ControlPlane, free_ports
from simulator.objects import job_object

SECONDS = 300
TRAINERS = 3
ROOM = {"cpu": "2", "memory": "8Gi", "pods": "20"}
"""Of a node: one trainer with 1500 millicores, and a rollout or two next to it."""


@contextmanager
def operated(directory: Path, gate: str) -> Iterator[ControlPlane]:
    """A control plane with this feature gate, and an operator. No controller looks for heartbeats of nodes, which have no kubelets."""
    only = "*,-node-lifecycle-controller"
    with ControlPlane(directory, managers=True, gates=(gate,), controllers=only) as found:
        found.install_crd()
        (port,) = free_ports(1)
        command = (sys.executable, "-m", "rljob_operator", "--progress-interval", "0.3", "--health-port", str(port))
        found.spawn("operator", "env", f"KUBECONFIG={found.kubeconfig}", *command)
        yield found


class Tenant:
    """A namespace and nodes of its own, so that the tests do not compete with each other."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.plane, self.name = plane, name
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def add_nodes(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            name = f"{self.name}-{number}"
            meta = {"name": name, "labels": {"tenant": self.name}}
            status = {"allocatable": ROOM, "capacity": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
            body = {"metadata": meta, "spec": {}, "status": status}
            self.plane.call("POST", "/api/v1/nodes", body)
            ready = self.plane.call("GET", f"/api/v1/nodes/{name}")
            self.plane.call("PUT", f"/api/v1/nodes/{name}", ready | {"spec": {}})  # without admission's taint

    def submit(self, name: str, priority: str = "", nodes: int = TRAINERS, **rollout: Any) -> None:
        template: dict[str, Any] = {"nodeSelector": {"tenant": self.name}}
        template |= {"priorityClassName": priority} if priority else {}
        trainer = {"device": "cpu", "nodes": nodes, "template": template | _requests("1500m")}
        rollout = {"replicas": 1, "template": template | _requests("100m")} | rollout
        spec = raw_spec(trainer=trainer, rollout=rollout, scheduling={"backend": "native"})
        self.plane.call("POST", self._jobs, job_object(name, spec, self.name))

    def delete(self, name: str) -> None:
        self.plane.call("DELETE", f"{self._jobs}/{name}")

    def condition(self, name: str, kind: str) -> dict[str, str]:
        status = self.plane.call("GET", f"{self._jobs}/{name}").get("status", {})
        found: dict[str, str] = next((c for c in status.get("conditions", []) if c["type"] == kind), {"status": ""})
        return found

    def pods(self, job: str, role: str = "trainer") -> list[dict[str, Any]]:
        found = self.plane.call("GET", f"/api/v1/namespaces/{self.name}/pods")["items"]
        return [pod for pod in found if pod["metadata"]["name"].startswith(f"{job}-{role}-")]

    def bound(self, job: str, role: str = "trainer") -> int:
        return sum("nodeName" in pod["spec"] for pod in self.pods(job, role) if not is_deleted(pod))

    def reap(self) -> None:
        """Deleted pods have ended, as a kubelet says."""
        for pod in self.plane.call("GET", f"/api/v1/namespaces/{self.name}/pods")["items"]:
            if is_deleted(pod):
                where = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}"
                self.plane.call("DELETE", where, {"gracePeriodSeconds": 0})

    @property
    def _jobs(self) -> str:
        return f"/apis/rljob.dev/v1alpha1/namespaces/{self.name}/rljobs"


def _requests(cpu: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}}


def is_deleted(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def until(ready: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    end = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < end
        meanwhile()
        time.sleep(0.2)
