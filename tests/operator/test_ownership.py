"""Somebody else's objects with a job's labels: they stand for nothing of the job, hold nothing up and are left alone."""

from typing import Any

import pytest

from rljob_api import names
from rljob_api.protocol import Report
from simulator.objects import copied
from simulator.world import NAMESPACE, World


def copy_of(world: World, pod: str, name: str) -> dict[str, Any]:
    """As `kubectl debug --copy-to --keep-labels` makes it: the labels stay, annotations and owner do not."""
    live = world.cluster.objects[("Pod", NAMESPACE, pod)]
    meta = {"name": name, "namespace": NAMESPACE, "labels": copied(live["metadata"]["labels"])}
    return world.cluster.put({"kind": "Pod", "metadata": meta, "spec": live["spec"], "status": live["status"]})


@pytest.mark.parametrize("name", ["demo-trainer-0-debug", "debugger-1", "copy-0", "demo-trainer-01"])
async def test_a_copy_of_a_pod_blocks_no_attempt_and_is_not_deleted(name: str) -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=2)
    copied_pod = copy_of(world, "demo-trainer-1", name)
    world.kill_pod("demo-trainer-0")
    await world.until(state="Running", attempt=2, turns=60)
    assert world.cluster.objects[("Pod", NAMESPACE, name)]["metadata"]["uid"] == copied_pod["metadata"]["uid"]
    assert world.status.trainer.ready == 2
    assert [m.pod for m in world.status.attempt.members] == ["demo-trainer-0", "demo-trainer-1"]  # type: ignore[union-attr]


async def test_a_copy_of_a_rollout_gets_no_requests() -> None:
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=2)
    copy_of(world, "demo-rollout-0", "demo-rollout-0-debug")
    for _ in range(5):
        await world.turn()
    assert world.control and [r.pod for r in world.control.rollouts] == ["demo-rollout-0"]


async def test_a_pod_that_somebody_orphaned_is_still_a_member_and_counts_again_when_it_is_adopted() -> None:
    """`kubectl delete statefulset --cascade=orphan`: the new set adopts the pods, and nobody restarts."""
    world = World(steps=10**6)
    world.apply()
    await world.until(state="Running", step=2)
    world.asleep = True
    for ordinal in range(2):
        del world.cluster.edit("Pod", NAMESPACE, f"demo-trainer-{ordinal}")["metadata"]["ownerReferences"]
    world.cluster.remove(world.cluster.objects[("StatefulSet", NAMESPACE, "demo-trainer")])
    for _ in range(3):
        await world.turn()
    new = world.cluster.objects[("StatefulSet", NAMESPACE, "demo-trainer")]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo-trainer", "controller": True}
    for ordinal in range(2):
        meta = world.cluster.edit("Pod", NAMESPACE, f"demo-trainer-{ordinal}")["metadata"]
        meta["ownerReferences"] = [owner | {"uid": new["metadata"]["uid"]}]
    world.asleep = False
    for _ in range(5):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 1
    assert (world.status.state, world.status.trainer.ready) == ("Running", 2)


async def test_a_config_map_with_the_jobs_labels_is_no_report_and_no_control_message() -> None:
    world = World(steps=10**6)
    world.apply()
    labels = names.labels("demo")
    report = Report(pod="demo-trainer-7", pod_uid="u", boot_id="b").dump_json()
    foreign = {"notes": {names.REPORT_KEY: "{"}, names.report("demo-trainer-7"): {names.REPORT_KEY: report}}
    for name, data in foreign.items():
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
        world.cluster.put({"kind": "ConfigMap", "metadata": meta, "data": data})
    world.asleep = True
    await world.turn()
    await world.turn()
    assert "notes" not in world.status.message
    world.asleep = False
    await world.until(state="Running", step=2)
    assert world.cluster.objects[("ConfigMap", NAMESPACE, "notes")]["data"] == foreign["notes"]
