"""Jobs of `scheduling.backend: native` and the real kube-scheduler with its gang scheduling, on a real control plane. Only kubelets are missing, so
a pod that is deleted is gone when the test says so."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.specs import raw_spec
from e2e.cluster.steps import BIN, KUBERNETES
from e2e.control_plane import ControlPlane, available, free_ports
from simulator.objects import job_object

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(int(KUBERNETES.split(".")[1]) < 37, reason="PodGroups are beta since Kubernetes 1.37"),
    pytest.mark.skipif(
        not available() or not (BIN / "kube-scheduler").exists(), reason="`make cluster-up` builds kube-scheduler"
    ),
]

SECONDS = 300
TRAINERS = 3
ROOM = {"cpu": "2", "memory": "8Gi", "pods": "20"}
"""Of a node: one trainer with 1500 millicores, and a rollout or two next to it."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With an operator. No controller looks for heartbeats of nodes, which have no kubelets."""
    directory, only = tmp_path_factory.mktemp("gangs"), "*,-node-lifecycle-controller"
    with ControlPlane(directory, managers=True, gates=("GenericWorkload",), controllers=only) as found:
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
        return sum("nodeName" in pod["spec"] for pod in self.pods(job, role) if not _is_deleted(pod))

    def reap(self) -> None:
        """Deleted pods have ended, as a kubelet says."""
        for pod in self.plane.call("GET", f"/api/v1/namespaces/{self.name}/pods")["items"]:
            if _is_deleted(pod):
                where = f"/api/v1/namespaces/{self.name}/pods/{pod['metadata']['name']}"
                self.plane.call("DELETE", where, {"gracePeriodSeconds": 0})

    @property
    def _jobs(self) -> str:
        return f"/apis/rljob.dev/v1alpha1/namespaces/{self.name}/rljobs"


def test_a_gang_is_bound_as_a_whole_or_not_at_all_and_the_status_says_what_the_scheduler_says(
    plane: ControlPlane,
) -> None:
    tenant = Tenant(plane, "whole")
    tenant.add_nodes(TRAINERS - 1)
    tenant.submit("demo")
    until(lambda: tenant.condition("demo", "Placed")["status"] == "False")
    until(lambda: tenant.condition("demo", "Placed").get("reason") == "Unschedulable")
    assert "minCount (3) cannot be satisfied: 2 scheduled" in tenant.condition("demo", "Placed")["message"]
    assert tenant.bound("demo") == 0, "two of three would have a node, and none may take it"
    tenant.add_nodes(1, first=TRAINERS - 1)
    until(lambda: tenant.bound("demo") == TRAINERS)
    until(lambda: tenant.condition("demo", "Placed")["status"] == "True")


def test_rollouts_beyond_the_minimum_follow_and_do_not_stand_in_for_trainers(plane: ControlPlane) -> None:
    tenant = Tenant(plane, "roles")
    tenant.add_nodes(TRAINERS - 1)
    tenant.submit("demo", replicas=4, minReplicas=1)
    until(lambda: tenant.bound("demo", "rollout") == 4)
    until(lambda: tenant.condition("demo", "Placed").get("reason") == "Unschedulable")
    assert tenant.bound("demo") == 0, "five of seven pods would have nodes, and the job could do nothing with them"


def test_of_two_jobs_that_compete_one_gets_all_its_nodes_and_the_other_follows(plane: ControlPlane) -> None:
    tenant = Tenant(plane, "rivals")
    tenant.add_nodes(TRAINERS)
    tenant.submit("one")
    tenant.submit("two")
    until(lambda: tenant.bound("one") + tenant.bound("two") == TRAINERS)
    first, second = ("one", "two") if tenant.bound("one") else ("two", "one")
    assert (tenant.bound(first), tenant.bound(second)) == (TRAINERS, 0)
    until(lambda: tenant.condition(second, "Placed").get("reason") == "Unschedulable")
    tenant.delete(first)
    until(lambda: tenant.bound(second) == TRAINERS, tenant.reap)


def test_a_gang_that_loses_a_node_to_a_higher_priority_gives_up_all_of_them(plane: ControlPlane) -> None:
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    plane.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", meta | {"value": 1000})
    tenant = Tenant(plane, "urgent")
    tenant.add_nodes(TRAINERS)
    tenant.submit("low")
    until(lambda: tenant.bound("low") == TRAINERS)
    before = {pod["metadata"]["uid"] for pod in tenant.pods("low")}
    tenant.submit("high", priority="urgent", nodes=1)
    until(lambda: all(_is_deleted(pod) for pod in tenant.pods("low") if pod["metadata"]["uid"] in before))
    until(lambda: tenant.bound("high") == 1, tenant.reap)
    until(lambda: tenant.condition("low", "Placed").get("reason") == "Unschedulable", tenant.reap)


def _requests(cpu: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}}


def _is_deleted(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def until(ready: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    end = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < end
        meanwhile()
        time.sleep(0.2)
