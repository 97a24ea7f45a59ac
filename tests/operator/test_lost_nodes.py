"""A node that is switched off keeps its pod's name: the gang goes on without that ordinal."""

from dataclasses import replace
from typing import Any

from rljob_api import names, reasons
from rljob_api.status import Attempt, JobStatus
from rljob_operator.cache.pods import Pod
from rljob_operator.model.ordinals import ordinals, server_ordinals
from rljob_operator.times import stamp
from simulator.makers import NOW, make_job
from simulator.objects import node_object
from simulator.world import NAMESPACE, World


def pod(ordinal: int, **fields: Any) -> Pod:
    return Pod(name=f"demo-trainer-{ordinal}", uid=f"u{ordinal}", role="trainer", ordinal=ordinal, **fields)


def test_an_ordinal_that_a_silent_node_holds_is_passed_over() -> None:
    def wanted(*pods: Pod) -> list[int]:
        return ordinals(pods, names.ROLE_TRAINER, 2, 120, now=1000.0)

    assert wanted(pod(0), pod(1)) == [0, 1]
    assert wanted(pod(0), pod(1, lost_since=900.0)) == [0, 1], "not yet"
    assert wanted(pod(0), pod(1, lost_since=880.0)) == [0, 2]
    assert wanted(pod(0, lost_since=1.0), pod(1, lost_since=1.0), pod(2, lost_since=1.0)) == [3, 4]
    assert wanted(pod(0), pod(1, lost_since=1.0, out_of_service=True)) == [0, 1], "it will be deleted by force"


def test_a_rollout_that_serves_is_not_given_up_for_a_lower_ordinal_while_an_attempt_is_open() -> None:
    def wanted(*pods: Pod, size: int = 1, ended_at: str = "") -> list[int]:
        status = JobStatus(attempt=Attempt(number=1, ended_at=ended_at))
        return server_ordinals(status, pods, names.ROLE_ROLLOUT, size, 120, now=1000.0)

    def rollout(ordinal: int, running: bool, ready: bool, **fields: Any) -> Pod:
        return replace(pod(ordinal, running=running, ready=ready, **fields), role=names.ROLE_ROLLOUT)

    serving, starting, gated = rollout(1, True, True), rollout(0, True, False), rollout(0, False, False)
    lost = rollout(0, True, False, lost_since=880.0)
    assert wanted() == [0]
    assert wanted(lost) == wanted(lost, serving) == [1]
    assert wanted(gated, serving) == wanted(starting, serving) == [1], "its node is back"
    assert wanted(rollout(0, True, True), serving) == [0], "now it can go without a gap"
    assert wanted(rollout(0, True, False, deleting=True), serving, size=2) == [0, 1]
    assert wanted(gated, serving, size=3) == [0, 1, 2]
    assert wanted(gated, serving, ended_at="2026-01-01T00:00:00Z") == [0]


def test_a_pass_is_due_when_a_silent_node_counts_as_lost_whether_or_not_an_attempt_is_open() -> None:
    """Nothing else happens then: its pod was not ready before, and may tolerate that for ever."""
    silent: dict[str, Any] = {"ready": False, "lost_since": NOW - 20}
    job = make_job(lifecycle={"nodeLossSeconds": 120}, scheduling={"backend": "none"})
    assert job.with_pods().changing_pod(1, **silent).decide().requeue_after == 100
    running = job.with_attempt().running()
    assert running.with_rollout().changing_pod(1, **silent).decide().requeue_after == 100
    assert running.with_rollout(**silent).decide().requeue_after == 100


def power_off(world: World, pod_name: str) -> None:
    """Its kubelet says nothing any more: the pod is not ready, is told to go, and stays."""
    stored = world.cluster.edit("Pod", NAMESPACE, pod_name)
    stored["spec"]["nodeName"] = "dark"
    stored["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    stored["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.cluster.put(node_object(False, stamp(world.now), name="dark"))
    world.launcher(int(pod_name[-1])).dark = True


async def test_a_gang_grows_by_one_beside_a_node_that_is_switched_off_and_shrinks_between_attempts() -> None:
    world = World(steps=400)
    world.cluster.full.add("dark")
    world.apply(lifecycle={"nodeLossSeconds": 10})
    await world.until(state="Running", step=3)
    power_off(world, "demo-trainer-1")
    await world.until(state="Running", attempt=2)
    attempt = world.status.attempt
    assert attempt and [(m.pod, m.node_rank) for m in attempt.members] == [("demo-trainer-0", 0), ("demo-trainer-2", 1)]
    assert world.status.last_failure and world.status.last_failure.reason == reasons.NODE_LOST
    assert world.status.restarts.counted == 0
    world.cluster.remove(world.cluster.objects["Pod", NAMESPACE, "demo-trainer-1"])
    await world.until(step=world.status.progress.step + 5)
    assert world.status.attempt and world.status.attempt.number == 2, "the node's return disturbs nobody"
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=3)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", "demo-trainer-1"]
    assert not [p for p in world.cluster.pods(NAMESPACE) if p["metadata"]["name"] == "demo-trainer-2"]


async def test_a_pod_is_deleted_by_force_only_when_its_node_is_gone_or_out_of_service() -> None:
    world = World(steps=400)
    world.cluster.full.add("dark")
    world.apply(lifecycle={"nodeLossSeconds": 1000})
    await world.until(state="Running", step=3)
    power_off(world, "demo-trainer-1")
    for _ in range(20):
        await world.turn()
    assert ("Pod", NAMESPACE, "demo-trainer-1") in world.cluster.objects
    node = world.cluster.edit("Node", None, "dark")  # type: ignore[arg-type]
    node["spec"] = {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]}
    await world.until(state="Running", attempt=2)
    attempt = world.status.attempt
    assert attempt and [m.pod for m in attempt.members] == ["demo-trainer-0", "demo-trainer-1"]
