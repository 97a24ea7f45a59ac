"""Jobs of `scheduling.backend: native` and the real kube-scheduler with its gang scheduling, on a real control plane. Only kubelets are missing, so
a pod that is deleted is gone when the test says so."""

from collections.abc import Iterator

import pytest

from apiserver.tenant import TRAINERS, Tenant, is_deleted, operated, until
from e2e.cluster.steps import BIN, KUBERNETES
from e2e.control_plane import ControlPlane, available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(int(KUBERNETES.split(".")[1]) < 37, reason="PodGroups are beta since Kubernetes 1.37"),
    pytest.mark.skipif(
        not available() or not (BIN / "kube-scheduler").exists(), reason="`make cluster-up` builds kube-scheduler"
    ),
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with operated(tmp_path_factory.mktemp("gangs"), "GenericWorkload") as found:
        yield found


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
    until(lambda: all(is_deleted(pod) for pod in tenant.pods("low") if pod["metadata"]["uid"] in before))
    until(lambda: tenant.bound("high") == 1, tenant.reap)
    until(lambda: tenant.condition("low", "Placed").get("reason") == "Unschedulable", tenant.reap)
