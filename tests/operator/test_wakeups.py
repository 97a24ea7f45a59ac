"""No pass ends with business unfinished that nobody will wake it for."""

import pytest

from rljob_operator.times import stamp
from simulator.life import live
from simulator.objects import node_object
from simulator.waking import Waking
from simulator.world import NAMESPACE


def fall_silent(world: Waking, pod: str) -> None:
    """Its node does, and the pod tolerates that for ever."""
    stored = world.cluster.edit("Pod", NAMESPACE, pod)
    stored["spec"]["nodeName"] = "dark"
    stored["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.cluster.put(node_object(False, stamp(world.now), name="dark"))
    world.cluster.full.add("dark")


def pods(world: Waking) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in world.cluster.pods(NAMESPACE))


@pytest.mark.parametrize("backend", ["none", "builtin"])
async def test_a_whole_life_needs_no_pass_that_nobody_asked_for(backend: str) -> None:
    world = await live(Waking(steps=12), scheduling={"backend": backend}, lifecycle={"backoffSeconds": 1})
    assert world.status.restarts.total == 2


async def test_a_rollout_on_a_lost_node_is_replaced_while_the_trainer_waits_for_it_in_silence() -> None:
    world = Waking(steps=400)
    world.apply(lifecycle={"nodeLossSeconds": 20})
    await world.until(state="Running", step=3)
    fall_silent(world, "demo-rollout-0")
    world._run = lambda: None  # type: ignore[method-assign]
    for _ in range(30):
        await world.turn()
    assert pods(world) == ["demo-rollout-0", "demo-rollout-1", "demo-trainer-0", "demo-trainer-1"]


async def test_a_trainer_on_a_lost_node_is_replaced_before_an_attempt_opens() -> None:
    world = Waking(steps=400)
    world.apply(lifecycle={"nodeLossSeconds": 20})
    world._report = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        await world.turn()
    fall_silent(world, "demo-trainer-1")
    for _ in range(30):
        await world.turn()
    assert pods(world) == ["demo-rollout-0", "demo-trainer-0", "demo-trainer-1", "demo-trainer-2"]
