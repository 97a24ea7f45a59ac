"""What a scheduling cycle sees of a job is what the job asks for itself, and what one job makes of it costs no other its nodes."""

from collections.abc import Callable

import pytest

from benchmarks.soak import Subject, subjects
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from rljob_operator.schedulers.builtin.request import JobView, scheduling_request
from rljob_operator.watch.events import CAPACITY_DELAY
from rljob_placement.cluster import Node
from rljob_placement.gang import Demand
from simulator.crowd import Crowd
from simulator.world import NAMESPACE, World

KEY = (NAMESPACE, "demo")
SHAPES = ("rl", "rl with servers of two pods")
SECONDS = 150


def edit(subject: Subject) -> None:
    """A user changes the spec, of which some applies at once and some with the next attempt."""
    world, random = subject.world, subject.random
    spec, pods = world.job["spec"], random.randint(1, 3)
    changes = [{"image": f"another:{world.elapsed}"}, {"trainer": spec["trainer"] | {"nodes": pods}}]
    changes += [{"suspend": True}, {"rollout": spec["rollout"] | {"replicas": pods}}]
    world.edit_spec(**random.choice(changes))
    subject.later(lambda: world.edit_spec(suspend=False))


async def differences(subject: Subject) -> int:
    """Moments at which a cycle would plan something else for the job."""
    world, found = subject.world, 0
    for _ in range(SECONDS):
        await subject.second()
        if subject.random.random() < 0.1:
            subject.suffer()
        if subject.random.random() < 0.05:
            edit(subject)
        if entry := world.feed.cache.jobs.get(KEY):
            snapshot = await world.operator._observer.snapshot(KEY, entry.value, world.now)
            own = world.operator._scheduler._request(snapshot)
            found += world.operator._scheduler._cache.pending(world.now, ()) != ([own] if own else [])
    return found


@pytest.mark.parametrize("seed", [8, 9])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_cycle_plans_for_a_job_what_it_asks_for_in_its_own_reconcile(shape: str, seed: int) -> None:
    """Otherwise it keeps nodes that the job does not want, and a further cycle is needed for those that it wants."""
    (subject,) = (one for one in subjects(steps=10**6, seed=seed) if one.name == shape)
    assert await differences(subject) == 0


async def test_a_job_that_runs_is_looked_at_again_only_when_something_of_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cycle for a new job would otherwise take 70 us for each of those that run, in the event loop."""
    asked = list[str]()

    def counted(view: JobView, node: Callable[[str], Node | None]) -> SchedulingRequest | None:
        asked.append(view.job.name)
        return scheduling_request(view, node)

    world = World(steps=10**6)
    world.apply(scheduling={"backend": "builtin"})
    await world.until(state="Running")
    for _ in range(3):
        await world.turn()
    monkeypatch.setattr("rljob_operator.schedulers.builtin.cache.scheduling_request", counted)
    known = SchedulerCache(world.feed.cache)

    async def looks() -> tuple[int, int]:
        """How often two cycles look at the job, and how many requests they make of it."""
        asked.clear()
        await known.validate()
        requests = [*known.pending(world.now, ()), *known.pending(world.now, ())]
        return len(asked), len(requests)

    assert await looks() == (1, 0), "once, at first"
    assert await looks() == (0, 0)
    world.edit_spec(scheduling={"backend": "builtin", "priority": 1})
    world.feed.deliver()
    assert await looks() == (1, 0)
    assert await looks() == (0, 0)
    pod = world.cluster.edit("Pod", NAMESPACE, "demo-trainer-1")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.feed.deliver()
    assert await looks() == (2, 0), "time may change what it lacks"
    world.cluster.remove(pod)
    world.feed.deliver()
    assert (await looks())[0] == 2, "a pod that is not there may lose the node that it had"
    world.cluster.remove(world.cluster.objects["Node", None, "node-1"])
    world.feed.deliver()
    assert await looks() == (2, 2), "it lacks nodes"


def unplannable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nobody can plan for pods that select nodes by a label `fault` while the returned list has an entry."""
    refuses, faults = Demand.refuses, ["fault"]

    def raises(demand: Demand, node: Node) -> str:
        if faults and "fault" in demand.selector:
            raise ZeroDivisionError
        return refuses(demand, node)

    monkeypatch.setattr(Demand, "refuses", raises)
    return faults


FAULTY = {"trainer": {"device": "cpu", "nodes": 2, "template": {"nodeSelector": {"fault": "1"}}}}


@pytest.mark.parametrize("order", [("bad", "old", "young"), ("old", "young", "bad"), ("young", "bad", "old")])
async def test_a_job_that_cannot_be_planned_keeps_no_other_from_its_nodes(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = unplannable(monkeypatch)
    crowd = Crowd({"a": 1, "b": 1, "c": 1})
    for name in order:
        crowd.apply(name, 2, **(FAULTY if name == "bad" else {}))
    await crowd.turns(8)
    assert crowd.status("bad").placement and "cannot be planned" in crowd.status("bad").message
    placed, waits = ("old", "young") if crowd.on_nodes("old") else ("young", "old")
    assert (len(crowd.on_nodes(placed)), crowd.on_nodes(waits)) == (3, {})
    crowd.delete(placed)
    await crowd.turns(8 + int(CAPACITY_DELAY))
    assert len(crowd.on_nodes(waits)) == 3, "freed nodes are offered to those that wait"
    faults.clear()
    for node in crowd.nodes:
        crowd.cluster.edit("Node", None, node)["metadata"]["labels"] = {"fault": "1"}
    crowd.delete(waits)
    for _ in range(10):  # when it is looked at again
        await crowd.turns(1)
        crowd.elapse(60)
    assert len(crowd.on_nodes("bad")) == 3


async def test_a_job_that_can_no_longer_be_planned_while_it_waits_keeps_no_other_from_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = unplannable(monkeypatch)
    faults.clear()
    crowd = Crowd({"a": 1, "b": 1, "c": 1})
    crowd.apply("first", 2)
    await crowd.turns(4)
    crowd.apply("bad", 2, **FAULTY)
    crowd.apply("young", 2)
    await crowd.turns(4)
    assert (len(crowd.on_nodes("first")), crowd.on_nodes("young")) == (3, {})
    faults.append("fault")
    crowd.delete("first")
    await crowd.turns(8 + int(CAPACITY_DELAY))
    assert len(crowd.on_nodes("young")) == 3
