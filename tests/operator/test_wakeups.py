"""No pass ends with business unfinished that nobody will wake it for. Nothing is listed a second time here, so nothing else repairs that."""

from typing import Any

import pytest

from rljob_api import names
from rljob_operator.times import stamp
from simulator.feed import Faults
from simulator.life import live
from simulator.objects import node_object
from simulator.world import NAMESPACE, World

NEVER = Faults(relist=10**9)


def silent_world(**options: Any) -> World:
    """With as few wakeups as in a real cluster: no second list, and numbers alone wake their job twice a minute."""
    return World(faults=NEVER, progress_interval=30.0, **options)


def fall_silent(world: World, pod: str) -> None:
    """Its node does, and the pod tolerates that for ever."""
    stored = world.cluster.edit("Pod", NAMESPACE, pod)
    stored["spec"]["nodeName"] = "dark"
    stored["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.cluster.put(node_object(False, stamp(world.now), name="dark"))
    world.cluster.full.add("dark")


def pods(world: World) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in world.cluster.pods(NAMESPACE))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_whole_life_needs_no_pass_that_nobody_asked_for(backend: str) -> None:
    world = await live(silent_world(steps=12), scheduling={"backend": backend}, lifecycle={"backoffSeconds": 1})
    assert world.status.restarts.total == 2


async def test_a_rollout_on_a_lost_node_is_replaced_while_the_trainer_waits_for_it_in_silence() -> None:
    world = silent_world(steps=400)
    world.apply(lifecycle={"nodeLossSeconds": 20})
    await world.until(state="Running", step=3)
    fall_silent(world, "demo-rollout-0")
    world._run = lambda: None  # type: ignore[method-assign]
    for _ in range(30):
        await world.turn()
    assert pods(world) == ["demo-rollout-0", "demo-rollout-1", "demo-trainer-0", "demo-trainer-1"]


async def test_a_trainer_on_a_lost_node_is_replaced_before_an_attempt_opens() -> None:
    world = silent_world(steps=400)
    world.apply(lifecycle={"nodeLossSeconds": 20})
    world._report = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        await world.turn()
    fall_silent(world, "demo-trainer-1")
    for _ in range(30):
        await world.turn()
    assert pods(world) == ["demo-rollout-0", "demo-trainer-0", "demo-trainer-1", "demo-trainer-2"]


async def test_pods_whose_service_account_was_made_again_are_replaced_at_once() -> None:
    """They cannot report any more, so no event of theirs wakes the job, and the watch's event of the new account changes nothing in the cache."""
    world = silent_world(steps=10**6)
    world.apply()
    await world.until(state="Running", step=3)
    world.cluster.remove(world.cluster.objects["ServiceAccount", NAMESPACE, names.pods("demo")])
    await world.until(attempt=2, turns=15)


@pytest.mark.parametrize("kind", ["Role", "RoleBinding", "ConfigMap", "StatefulSet", "NetworkPolicy", "ServiceAccount"])
async def test_children_of_any_kind_that_are_deleted_cost_no_more_than_moments(kind: str) -> None:
    world = silent_world(steps=10**6)
    world.apply()
    await world.until(state="Running", step=3)
    for key in [key for key in world.cluster.objects if key[0] == kind]:
        world.cluster.remove(world.cluster.objects[key])
    for _ in range(25):
        await world.turn()
    before = world.status.attempt
    await world.until(state="Running", step=world.status.progress.step + 1, turns=60)
    assert before and world.status.attempt and world.status.attempt.number == before.number, "nothing came later"
