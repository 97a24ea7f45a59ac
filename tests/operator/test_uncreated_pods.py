"""Pods that the StatefulSet's controller cannot create: the job says why."""

from typing import Any

from rljob_operator.kube.api import Object
from rljob_operator.model.uncreated import INTERVAL, PATIENCE
from rljob_operator.times import stamp
from simulator.makers import make_job
from simulator.world import NAMESPACE, World

NO_CLASS = 'pods "demo-trainer-0" is forbidden: no PriorityClass with name nope was found'


def refused(world: World, role: str, why: str) -> None:
    """The event of the controller, as it writes it."""
    meta = world.cluster.objects[("StatefulSet", NAMESPACE, f"demo-{role}")]["metadata"]
    event: Object = {
        "kind": "Event",
        "metadata": {"name": f"{role}-{world.cluster.version}", "namespace": NAMESPACE},
        "involvedObject": {"kind": "StatefulSet", "name": meta["name"], "uid": meta["uid"]},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": f"create Pod demo-{role}-0 in StatefulSet demo-{role} failed error: {why}",
        "lastTimestamp": stamp(world.now),
    }
    world.cluster.put(event)


async def without_pods(**changes: Any) -> World:
    """A job whose StatefulSets are there and whose pods are not."""
    world = World(asleep=True)
    world.apply(**changes)
    await world.turn()
    return world


async def test_the_message_says_why_pods_are_not_created() -> None:
    world = await without_pods(trainer={"device": "cpu", "nodes": 2, "template": {"priorityClassName": "nope"}})
    refused(world, "trainer", "exceeded quota: team")
    world.now += 1
    refused(world, "trainer", NO_CLASS)
    for _ in range(int(PATIENCE) + 2):
        await world.turn()
    assert f"demo-trainer-0 does not exist: {NO_CLASS}" in world.status.message
    assert "quota" not in world.status.message, "the newest reason counts"
    world.asleep = False
    await world.until(state="Running")
    assert "does not exist" not in world.status.message


async def test_a_change_of_the_reason_is_seen_without_any_event_of_a_watch() -> None:
    world = await without_pods()
    refused(world, "trainer", "exceeded quota: team")
    for _ in range(int(PATIENCE) + 2):
        await world.turn()
    assert "exceeded quota: team" in world.status.message
    refused(world, "trainer", NO_CLASS)
    for _ in range(int(INTERVAL) + 2):
        await world.turn()
    assert NO_CLASS in world.status.message


def test_servers_that_are_not_created_are_named_while_the_trainer_waits() -> None:
    job = (
        make_job().with_attempt().running(step=0, phase="waiting").having(uncreated={"rollout": "exceeded quota: team"})
    )
    assert job.next().message == "waiting for rollouts, 0/1 answer: rollout pods do not exist: exceeded quota: team"


async def test_pods_that_come_at_once_cost_no_question() -> None:
    world = World()
    world.apply()
    await world.until(state="Succeeded", turns=60)
    assert world.operator._observer.due((NAMESPACE, "demo"), world.now) is None


async def test_a_job_whose_pods_are_missing_is_asked_about_rarely() -> None:
    world = await without_pods()
    asked = world.cluster.requests
    for _ in range(3 * int(INTERVAL)):
        world.enqueue((NAMESPACE, "demo"), 0.0)
        await world.turn()
    assert world.cluster.requests - asked <= 2 * 4 + 4, "once each 30 s for each of two StatefulSets"
