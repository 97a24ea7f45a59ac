"""Jobs of `scheduling.backend: kueue` and a real Kueue, on a real control plane with KWOK's nodes. `make kueue` compiles what is needed."""

import asyncio
from collections.abc import Iterator

import pytest

from e2e import kueue, kwok
from e2e.cluster.binaries import KUEUE, KWOK, is_built
from e2e.control_plane import ControlPlane, available
from kueue.clusters import run_operator
from kueue.world import SECONDS, Tenant, tenant, until
from rljob_api.backends import FINALIZERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available() or not is_built(KUEUE) or not is_built(KWOK), reason="`make kueue` compiles it"),
]

NODES, PER_RACK, GPUS = 12, 4, 40
"""Two gangs of 26 GPUs do not fit into the quota, though into the nodes."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("kueue"), managers=True) as found:
        found.install_crd()
        for name in (f"n{number}" for number in range(NODES)):
            found.call("POST", "/api/v1/nodes", kwok.node(name, {"rack": rack(name), "gpu": "h200"}))
        kwok.start(found)
        kueue.start(found)
        quota = {"nvidia.com/gpu": str(GPUS), "cpu": "1k", "memory": "1Ti"}
        kueue.open_cluster(found, quota, ["rack", "kubernetes.io/hostname"], {"gpu": "h200"})
        run_operator(found)
        yield found


def rack(node: str) -> str:
    return f"r{int(node[1:]) // PER_RACK}"


async def test_a_gang_is_admitted_whole_and_a_lost_pod_comes_back_in_its_place(plane: ControlPlane) -> None:
    async with tenant(plane, "whole") as job:
        await until(job, "Running", attempt=1)
        workload, before = job.workload(), await job.pods()
        assert workload["metadata"]["name"] == "demo-gang" and kueue.is_admitted(workload)
        assert sorted(s["count"] for s in workload["spec"]["podSets"]) == [2, 3]
        assert len({rack(pod["spec"]["nodeName"]) for pod in before.values()}) == 1, "as near as it can"
        await job.remove_child("Pod", "demo-trainer-1")
        await until(job, "Running", attempt=2)
        after = await job.pods()
        kept = {n for n in before if before[n]["metadata"]["uid"] == after[n]["metadata"]["uid"]}
        assert kept == before.keys() - {"demo-trainer-1"}
        assert after["demo-trainer-1"]["spec"]["nodeName"] == before["demo-trainer-1"]["spec"]["nodeName"]
        assert job.workload()["metadata"]["uid"] == workload["metadata"]["uid"]


async def test_quota_goes_to_who_waits_when_a_job_is_suspended_and_comes_back_when_that_one_ends(
    plane: ControlPlane,
) -> None:
    async with tenant(plane, "first") as first:
        await until(first, "Running", attempt=1)
        async with tenant(plane, "second") as second:
            await held(second)
            await first.ask("n1", "suspend")
            await until(second, "Running", attempt=1)
            assert first.status.state == "Suspended"
            await first.ask("n2", "resume")
            await held(first)
            second.finish = True
            await until(first, "Running", attempt=2)
            assert second.status.state == "Succeeded"
        assert first.status.restarts.total == 0


async def test_nothing_is_left_of_a_job_that_is_deleted_while_it_waits_for_quota(plane: ControlPlane) -> None:
    """Kueue keeps its pods, which no kubelet ever ends. The tenant is done when none is left."""
    async with tenant(plane, "owner") as owner:
        await until(owner, "Running", attempt=1)
        async with tenant(plane, "late") as late:
            await held(late)
            kept = [pod["metadata"].get("finalizers") for pod in (await late.pods()).values()]
            assert kept == [[*FINALIZERS]] * 5


async def held(job: Tenant) -> None:
    """It waits, and says for whom."""
    async with asyncio.timeout(SECONDS):
        while "demo-trainer-0 is held back by kueue.x-k8s.io/admission" not in job.status.message:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert not kueue.is_admitted(job.workload())


async def test_another_number_of_rollouts_is_another_group_from_the_next_attempt_on(plane: ControlPlane) -> None:
    async with tenant(plane, "resized") as job:
        await until(job, "Running", attempt=1)
        await job.edit_child("RLJob", "demo", {"spec": {"rollout": {"replicas": 1}}})
        await asyncio.sleep(1)  # for a pod that would be deleted too early
        assert len(await job.pods()) == 5
        await job.ask("n1", "restart")
        await until(job, "Running", attempt=2)
        async with asyncio.timeout(SECONDS):
            while len(await job.pods()) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert sorted(s["count"] for s in job.workload()["spec"]["podSets"]) == [1, 3]
