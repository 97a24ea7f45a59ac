"""What a scheduling cycle sees of a job is what the job asks for itself, and what one job makes of it costs no other its nodes."""

import pytest

from benchmarks.soak import Subject, subjects
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from rljob_operator.watch.events import CAPACITY_DELAY
from rljob_placement.cluster import Node
from rljob_placement.gang import Demand
from simulator.crowd import Crowd
from simulator.world import NAMESPACE

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
            found += SchedulerCache(world.feed.cache).pending(world.now, ()) != ([own] if own else [])
    return found


@pytest.mark.parametrize("seed", [8, 9])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_cycle_plans_for_a_job_what_it_asks_for_in_its_own_reconcile(shape: str, seed: int) -> None:
    """Otherwise it keeps nodes that the job does not want, and a further cycle is needed for those that it wants."""
    (subject,) = (one for one in subjects(steps=10**6, seed=seed) if one.name == shape)
    assert await differences(subject) == 0


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
