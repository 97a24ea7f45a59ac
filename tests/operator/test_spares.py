"""Spare pods of the trainer: they wait next to its gang, and the next attempt opens with one of them in the place of a lost member."""

from typing import Any

import pytest

from rljob_api import names, reasons
from rljob_operator.endpoints import Metrics
from rljob_operator.times import stamp
from simulator.objects import node_object
from simulator.scraping import samples
from simulator.world import NAMESPACE, World

BACKENDS = ("builtin", "none", "kueue", "volcano")


def apply(world: World, nodes: int, spares: int = 1, backend: str = "builtin", **changes: Any) -> World:
    """A job of two trainers and a rollout, and as many nodes, each with capacity for one pod."""
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    for i in range(nodes):
        world.cluster.put(node_object(True, name=f"n{i}", pods=1))
    queue = {"queue": "team"} if backend in ("kueue", "volcano") else {}
    lifecycle = {"backoffSeconds": 1, "nodeLossSeconds": 5} | changes.pop("lifecycle", {})
    world.apply(scheduling={"backend": backend, "spareNodes": spares} | queue, lifecycle=lifecycle, **changes)
    return world


def members(world: World) -> dict[int, str]:
    """Pods of the newest attempt by rank."""
    assert world.status.attempt
    return {m.node_rank: m.pod for m in world.status.attempt.of(names.ROLE_TRAINER)}


def node_of(world: World, pod: str) -> str:
    return str(world.cluster.objects["Pod", NAMESPACE, pod]["spec"].get("nodeName", ""))


def lose(world: World, pod: str) -> None:
    """Its node is switched off, and the pod with it."""
    node = world.cluster.edit("Node", None, node_of(world, pod))
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp(world.now)}]
    world.cluster.full.add(node["metadata"]["name"])
    stored = world.cluster.edit("Pod", NAMESPACE, pod)
    stored["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.launchers[stored["metadata"]["uid"]].dark = True


async def warmed(world: World, spares: int = 1) -> World:
    await world.until(state="Running", step=3)
    for _ in range(20):
        if world.status.spares.warm == spares:
            return world
        await world.turn()
    raise AssertionError(f"no warm spare: {world.status.spares}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lost", [0, 1])
async def test_a_spare_stands_in_for_a_member_whose_node_is_lost_with_no_other_node_free(
    lost: int, backend: str
) -> None:
    world = await warmed(apply(World(steps=400), nodes=4, backend=backend))
    assert sorted(members(world).values()) == ["demo-trainer-0", "demo-trainer-1"]
    assert world.status.trainer.text == "2/2", "spares are counted on their own"
    lose(world, f"demo-trainer-{lost}")
    await world.until(state="Running", attempt=2, turns=30)
    assert set(members(world)) == {0, 1}
    assert set(members(world).values()) == {f"demo-trainer-{1 - lost}", "demo-trainer-2"}
    assert world.status.last_failure and world.status.last_failure.reason == reasons.NODE_LOST
    assert (world.status.restarts.total, world.status.restarts.counted) == (1, 0)
    assert world.status.spares.standing_in == ["demo-trainer-2"]
    assert world.status.spares.warm == 0, "there is no node for another one"


async def test_without_a_spare_the_same_loss_stops_the_job() -> None:
    world = apply(World(steps=400), nodes=3, spares=0)
    await world.until(state="Running", step=3)
    lose(world, "demo-trainer-1")
    for _ in range(30):
        await world.turn()
    assert world.status.state == "Restarting" and world.status.placement and world.status.placement.problem


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_a_spare_is_preferred_to_the_pod_that_replaces_the_lost_one(backend: str) -> None:
    """The new pod has to load image and imports first."""
    world = await warmed(apply(World(steps=400), nodes=6, backend=backend))
    world.kill_pod("demo-trainer-0")
    await world.until(state="Running", attempt=2, turns=30)
    assert set(members(world).values()) == {"demo-trainer-1", "demo-trainer-2"}
    for _ in range(5):
        await world.turn()
    assert (world.status.spares.warm, world.status.trainer.ready) == (1, 2), "the new pod is the spare now"
    world.launcher(1).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=3)
    assert set(members(world).values()) == {"demo-trainer-1", "demo-trainer-2"}, "nobody moves without need"


async def test_an_attempt_opens_without_waiting_for_a_spare() -> None:
    world = apply(World(steps=400), nodes=3, spares=2)
    await world.until(state="Running", step=3)
    assert (world.status.spares.desired, world.status.spares.warm) == (2, 0)
    placed = next(c for c in world.status.conditions if c.type == "Placed")
    assert placed.status == "True" and world.status.placement and not world.status.placement.problem
    world.cluster.put(node_object(True, name="n3", pods=1))
    await warmed(world)
    assert world.status.attempt and world.status.attempt.number == 1, "it comes while the attempt runs"


async def test_a_spare_stands_in_although_there_is_no_node_for_the_rollout_that_was_lost_with_the_member() -> None:
    """There is no new plan, and so no rank for the spare: the members take theirs in order."""
    world = await warmed(apply(World(steps=400), nodes=4))
    lose(world, "demo-trainer-0")
    rollout = world.cluster.edit("Node", None, node_of(world, "demo-rollout-0"))
    world.cluster.remove(rollout)
    await world.until(attempt=2, turns=40)
    assert members(world) == {0: "demo-trainer-1", 1: "demo-trainer-2"}
    assert world.status.placement and world.status.placement.problem


async def test_a_lost_spare_disturbs_nobody_and_is_replaced() -> None:
    world = await warmed(apply(World(steps=400), nodes=5))
    lost = node_of(world, "demo-trainer-2")
    lose(world, "demo-trainer-2")
    for _ in range(20):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 1
    assert world.status.spares.warm == 1
    assert node_of(world, "demo-trainer-3") not in ("", lost)


async def test_the_loss_of_more_members_than_there_are_spares_needs_nodes_for_the_rest_only() -> None:
    world = await warmed(apply(World(steps=400), nodes=5))
    lose(world, "demo-trainer-0")
    lose(world, "demo-trainer-1")
    await world.until(state="Running", attempt=2, turns=40)
    assert "demo-trainer-2" in members(world).values() and set(members(world)) == {0, 1}


async def test_a_member_leaves_a_node_that_its_owner_quarantines_for_the_spare() -> None:
    """No other node is free: without the spare the job would have to stay."""
    world = await warmed(apply(World(steps=400, save_every=1000), nodes=4))
    left = node_of(world, "demo-trainer-1")
    world.cluster.edit("Node", None, left)["spec"] = {"unschedulable": True}
    await world.until(state="Running", attempt=2)
    assert set(members(world).values()) == {"demo-trainer-0", "demo-trainer-2"}
    assert world.status.lost_steps == 0
    assert [(n.node, n.state) for n in world.status.nodes] == [(left, "excluded")]


async def test_a_spare_leaves_a_quarantined_node_and_the_attempt_goes_on() -> None:
    world = await warmed(apply(World(steps=400, save_every=1000), nodes=5))
    left = node_of(world, "demo-trainer-2")
    world.cluster.edit("Node", None, left)["spec"] = {"unschedulable": True}
    for _ in range(20):
        await world.turn()
    assert world.status.attempt and (world.status.attempt.number, world.status.attempt.command) == (1, "run")
    assert node_of(world, "demo-trainer-2") not in ("", left) and world.status.spares.warm == 1


async def test_ranks_that_are_killed_on_one_node_again_and_again_leave_it_for_the_spares() -> None:
    world = await warmed(apply(World(steps=400), nodes=4))
    bad = node_of(world, "demo-trainer-1")
    for attempt in (1, 2):
        await world.until(state="Running", attempt=attempt)
        world.launcher(1).fail("killed", "Signal 9 (SIGKILL)", world.now)
    await world.until(state="Running", attempt=3)
    assert bad not in {node_of(world, pod) for pod in members(world).values()}


async def test_spares_are_released_with_the_job_and_come_back_with_it() -> None:
    world = await warmed(apply(World(steps=400), nodes=4))
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    for _ in range(5):
        await world.turn()
    assert not world.cluster.pods(NAMESPACE) and world.status.spares.desired == 0
    world.request("n2", "resume")
    await world.until(state="Running", attempt=2)
    await warmed(world)


async def test_the_start_of_an_attempt_and_the_metrics_say_what_spares_do() -> None:
    world = await warmed(apply(World(steps=400), nodes=4))
    world.feed.deliver()

    def metrics() -> tuple[float, float]:
        found = {x.name: x.value for x in samples(Metrics(world.feed.cache, {}, lambda: 0.0, {}))}
        assert found["rljob_job_pods"] == 4, "what jobs.maxPods limits"
        return found["rljob_job_spares"], found["rljob_job_warm_spares"]

    assert metrics() == (1, 1)
    lose(world, "demo-trainer-1")
    await world.until(state="Running", attempt=2)
    world.feed.deliver()
    assert metrics() == (1, 0)
    assert reasons.UNPLACEABLE not in world.events(), "no other node is needed"
    said = [o["message"] for (kind, _, _), o in world.cluster.objects.items() if kind == "Event"]
    assert any(
        text.startswith("attempt 2 starts on 2 pods at ") and "demo-trainer-2 stands in" in text for text in said
    )


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_an_operator_killed_after_any_write_opens_the_same_attempt(backend: str) -> None:
    async def story(world: World) -> World:
        await warmed(apply(world, nodes=4, backend=backend))
        world.cluster.writes.clear()
        lose(world, "demo-trainer-0")
        return world

    undisturbed = await story(World(steps=400))
    await undisturbed.until(state="Running", attempt=2)
    count = len(undisturbed.cluster.writes)
    assert count > 3
    for writes in range(1, count + 1):
        world = await story(World(steps=400))
        world.cluster.crash_after = writes
        await world.until(state="Running", attempt=2)
        assert world.crashes == 1
        assert members(world) == members(undisturbed), f"killed after write {writes}"


@pytest.mark.parametrize("backend", ["builtin", "none"])
async def test_the_next_attempt_opens_on_the_running_pods_when_the_nodes_of_two_lost_ones_are_back(
    backend: str,
) -> None:
    world = await warmed(apply(World(steps=400), nodes=6, backend=backend))
    lost = list[str]()
    for attempt, ordinal in ((2, 1), (3, 2)):
        lost.append(node_of(world, f"demo-trainer-{ordinal}"))
        lose(world, f"demo-trainer-{ordinal}")
        await world.until(state="Running", attempt=attempt, turns=40)
        await warmed(world)
    assert set(members(world).values()) == {"demo-trainer-0", "demo-trainer-3"}
    for name in lost:
        world.cluster.full.discard(name)
        world.cluster.edit("Node", None, name)["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    for ordinal in (1, 2):
        world.kill_pod(f"demo-trainer-{ordinal}")
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=4)
    assert set(members(world).values()) == {"demo-trainer-0", "demo-trainer-3"}


def bring_back(world: World, node: str) -> None:
    """The node is switched on again, and the pods that it had run once more."""
    world.cluster.full.discard(node)
    world.cluster.edit("Node", None, node)["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    for pod in world.cluster.pods(NAMESPACE):
        if pod["spec"].get("nodeName") == node:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            world.cluster.edit("Pod", NAMESPACE, name)["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            if launcher := world.launchers.get(uid):
                world.launchers[uid] = type(launcher)(launcher.pod, uid, launcher.boot_id + "+")


def trainers_on_nodes(world: World) -> set[str]:
    pods = {str(p["metadata"]["name"]) for p in world.cluster.pods(NAMESPACE) if p["spec"].get("nodeName")}
    return {name for name in pods if name.startswith("demo-trainer-")}


@pytest.mark.parametrize("spares", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_pods_that_nobody_needs_any_more_hold_no_nodes_when_lost_ones_are_back(backend: str, spares: int) -> None:
    world = await warmed(apply(World(steps=400), nodes=8, spares=spares, backend=backend), spares)
    lost = list[str]()
    for attempt, ordinal in ((2, 0), (3, 1)):
        lost.append(node_of(world, f"demo-trainer-{ordinal}"))
        lose(world, f"demo-trainer-{ordinal}")
        await world.until(state="Running", attempt=attempt, turns=40)
        await warmed(world, spares)
    assert set(members(world).values()) == {"demo-trainer-2", "demo-trainer-3"}
    for node in lost:
        bring_back(world, node)
    for _ in range(10):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 3, "the attempt goes on"
    assert len(trainers_on_nodes(world)) == 2 + spares, trainers_on_nodes(world)
    await warmed(world, spares)
    lose(world, "demo-trainer-3")
    await world.until(state="Running", attempt=4, turns=40)


@pytest.mark.parametrize("backend", ["builtin"])
async def test_without_spares_too_the_pod_of_a_node_that_is_back_gives_it_away(backend: str) -> None:
    world = apply(World(steps=400), nodes=6, spares=0, backend=backend)
    await world.until(state="Running", step=3)
    back = node_of(world, "demo-trainer-0")
    lose(world, "demo-trainer-0")
    await world.until(state="Running", attempt=2, turns=40)
    bring_back(world, back)
    for _ in range(10):
        await world.turn()
    assert world.status.attempt and world.status.attempt.number == 2
    assert trainers_on_nodes(world) == set(members(world).values())


async def test_another_schedulers_spare_stays_on_a_quarantined_node_until_the_attempt_ends_as_the_condition_says() -> (
    None
):
    world = await warmed(apply(World(steps=400, save_every=1000), nodes=5, backend="none"))
    left = node_of(world, "demo-trainer-2")
    world.cluster.edit("Node", None, left)["spec"] = {"unschedulable": True}
    for _ in range(10):
        await world.turn()
    assert world.status.attempt and (world.status.attempt.number, world.status.attempt.command) == (1, "run")
    said = next(c.message for c in world.status.conditions if c.type == "NodesSound")
    assert said == f"leaves node {left} when the attempt ends: cordoned"
    world.launcher(0).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=2, turns=40)
    assert left not in {p["spec"].get("nodeName") for p in world.cluster.pods(NAMESPACE)}
