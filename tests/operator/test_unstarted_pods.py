"""Pods on nodes that do not start, of which only events say why: the job says it too, with the field that names what is missing."""

from typing import Any

import pytest

from rljob_operator.model.pod_events import INTERVAL, MOST_ASKED, STARTING
from rljob_operator.reconcile.status_pace import DISPLAY_SPACING
from rljob_operator.times import stamp
from simulator.controllers import sync_stateful_sets
from simulator.makers import make_job
from simulator.world import NAMESPACE, World

REWARD = {"name": "reward", "mountPath": "/etc/reward", "source": {"configMap": {"name": "my-reward"}}}
SHARED = {"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}
NO_MOUNT = 'MountVolume.SetUp failed for volume "reward" : configmap "my-reward" not found'
CREATING = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}


async def creating(**changes: Any) -> World:
    """A job whose pods are on a node, where their containers are being created for ever."""
    world = World(asleep=True)
    world.apply(**changes)
    await world.turn()
    sync_stateful_sets(world.cluster)
    for pod in world.cluster.pods(NAMESPACE):
        edited = world.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])
        edited["spec"]["nodeName"] = "node-1"
        edited["status"] = {"phase": "Pending", "containerStatuses": [CREATING]}
    return world


def say(world: World, pod: str, reason: str, message: str, kind: str = "Warning") -> None:
    """An event of the kubelet."""
    meta = world.cluster.objects[("Pod", NAMESPACE, pod)]["metadata"]
    event = {
        "kind": "Event",
        "metadata": {"name": f"{pod}-{world.cluster.version}", "namespace": NAMESPACE},
        "involvedObject": {"kind": "Pod", "name": pod, "uid": meta["uid"]},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": stamp(world.now),
    }
    world.cluster.put(event)


async def turns(world: World, seconds: float) -> str:
    """The message after that time, and after the seconds that are between two writes of it."""
    for _ in range(int(seconds + DISPLAY_SPACING) + 2):
        await world.turn()
    return world.status.message


async def test_a_config_map_that_nobody_has_made_is_named_with_the_field_of_its_volume() -> None:
    world = await creating(volumes=[SHARED, REWARD])
    say(world, "demo-trainer-0", "Scheduled", "assigned to node-1", "Normal")
    world.now += 1
    say(world, "demo-trainer-0", "FailedMount", NO_MOUNT)
    message = await turns(world, STARTING)
    assert f"demo-trainer-0: FailedMount: {NO_MOUNT}" in message
    assert f"create it in namespace {NAMESPACE}, or correct spec.volumes[1].source.configMap.name" in message


async def test_a_pod_whose_volume_was_mounted_meanwhile_pulls_its_image() -> None:
    world = await creating()
    say(world, "demo-trainer-0", "FailedMount", NO_MOUNT)
    assert "FailedMount" in await turns(world, STARTING)
    say(world, "demo-trainer-0", "Pulling", 'Pulling image "trainer:1"', "Normal")
    message = await turns(world, INTERVAL)
    assert 'demo-trainer-0: Pulling: Pulling image "trainer:1"' in message
    assert "FailedMount" not in message


async def test_a_pod_that_has_started_is_no_longer_asked_about() -> None:
    world = await creating()
    say(world, "demo-trainer-0", "FailedMount", NO_MOUNT)
    assert "FailedMount" in await turns(world, STARTING)
    for pod in world.cluster.pods(NAMESPACE):
        world.cluster.edit("Pod", NAMESPACE, pod["metadata"]["name"])["status"] = {"phase": "Pending"}
    world.asleep = False
    await world.until(state="Running")
    assert "FailedMount" not in world.status.message


@pytest.mark.parametrize("pods", [2, 100])
async def test_few_pods_of_a_job_are_asked_about_however_many_do_not_start(
    pods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await creating(trainer={"device": "cpu", "nodes": pods})
    asked, pages = list[str](), world.cluster.pages

    def counting(kind: str, namespace: str | None, selector: str = "", fields: str = "") -> Any:
        asked.append(f"{kind} {fields}")
        return pages(kind, namespace, selector, fields)

    monkeypatch.setattr(world.cluster, "pages", counting)
    await turns(world, STARTING + 5)
    assert 0 < len([one for one in asked if one.startswith("Event")]) <= MOST_ASKED


def test_a_server_that_does_not_start_is_explained_while_the_trainer_waits_for_it() -> None:
    job = make_job().with_attempt().running(step=0, phase="waiting")
    job = job.with_rollout(phase="Pending", ready=False, running=False, ip="")
    said = job.having(unstarted={"rollout-0": f"FailedMount: {NO_MOUNT}"}).next().message
    assert said == f"waiting for rollouts, 0/1 answer: demo-rollout-0: FailedMount: {NO_MOUNT}"
