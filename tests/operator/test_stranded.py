"""Gangs of which a part holds nodes, and the rest has none: after a while they give their nodes to jobs that can use them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.samples import Sample

from rljob_api import reasons
from rljob_operator.endpoints import Metrics
from rljob_operator.times import seconds, stamp
from rljob_operator.watch.events import CAPACITY_DELAY
from simulator.crowd import Crowd
from simulator.makers import NOW, Job, make_job
from simulator.scraping import samples, samples_of
from simulator.world import NAMESPACE, World

LIMIT = 30
OFFERED = int(CAPACITY_DELAY) + 1
"""Turns until capacity that has become free is offered."""
LIFECYCLE = {"strandedSeconds": LIMIT, "backoffSeconds": 1}


def counted(metrics: Iterable[Sample]) -> dict[str, float]:
    """The metric of stranded parts of jobs, by state."""
    found = [one for one in metrics if one.name == "rljob_job_stranded"]
    return {state: sum(x.value for x in found if x.labels["state"] == state) for state in ("holding", "released")}


async def stranded() -> Crowd:
    """A job of three pods on three nodes, of which one was drained for good, and a younger one of two pods."""
    crowd = Crowd({"a": 1, "b": 1, "c": 1})
    crowd.apply("old", trainers=2, lifecycle=LIFECYCLE)
    await crowd.turns(4)
    assert len(crowd.on_nodes("old")) == 3
    crowd.drain("c")
    crowd.apply("young", trainers=1, lifecycle=LIFECYCLE)
    return crowd


async def test_a_gang_that_lost_a_node_for_good_gives_up_the_others_to_a_job_that_fits() -> None:
    crowd = await stranded()
    await crowd.turns(LIMIT - 2)
    status = crowd.status("old")
    assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("young"))) == (2, 0), "a spare node may come"
    until = stamp(seconds(status.stranded_since) + LIMIT)
    assert status.message.endswith(f"; pods that hold nodes are released at {until}")
    crowd.feed.deliver()
    assert counted(samples(Metrics(crowd.feed.cache, {}, lambda: 0.0, {}))) == {"holding": 1, "released": 0}
    await crowd.turns(8 + OFFERED)
    assert crowd.on_nodes("old") == {}
    assert sorted(crowd.on_nodes("young").values()) == ["a", "b"]
    status = crowd.status("old")
    assert status.stranded_since == "" and status.message.startswith("waiting for capacity: ")
    events = [o for (kind, _, _), o in crowd.cluster.objects.items() if kind == "Event"]
    (said,) = [o["message"] for o in events if (o["type"], o["reason"]) == ("Warning", reasons.STRANDED)]
    assert said.startswith("the job gives up the nodes of 2 pods and starts again with the whole gang: needs capacity")


async def test_it_keeps_its_place_in_the_queue_and_starts_again_as_a_whole() -> None:
    crowd = await stranded()
    await crowd.turns(LIMIT + 6 + OFFERED)
    crowd.uncordon("c")
    await crowd.turns(6 + OFFERED)
    assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("young"))) == (0, 2), "one node is no gang"
    crowd.apply("youngest", trainers=1, lifecycle=LIFECYCLE)
    crowd.delete("young")
    await crowd.turns(6 + OFFERED)
    assert (len(crowd.on_nodes("old")), len(crowd.on_nodes("youngest"))) == (3, 0), "the oldest comes first"


async def test_a_gang_that_becomes_whole_in_time_keeps_its_nodes() -> None:
    crowd = await stranded()
    before = crowd.on_nodes("old")
    await crowd.turns(LIMIT - 5)
    crowd.uncordon("c")
    await crowd.turns(LIMIT)
    assert crowd.on_nodes("old") == before
    assert crowd.status("old").stranded_since == ""


async def test_with_a_scheduler_that_starts_pods_one_by_one_the_job_has_none_for_a_while() -> None:
    world = World(steps=400)
    world.apply(lifecycle=LIFECYCLE, scheduling={"backend": "none"})
    await world.until(state="Running", step=3)
    world.cluster.full.add("node-1")
    world.kill_pod("demo-trainer-1")
    for _ in range(LIMIT + 5):
        await world.turn()
    assert world.cluster.pods(NAMESPACE) == []
    until = world.status.released_until
    assert world.status.message.endswith(f"; all pods are released, and asked for again at {until}")
    assert counted(samples_of(world)) == {"holding": 0, "released": 1}
    world.cluster.full.clear()
    while world.now < seconds(until):
        assert world.cluster.pods(NAMESPACE) == []
        await world.turn()
    await world.until(state="Running", attempt=2)
    assert (world.status.released_until, world.status.stranded_since) == ("", "")
    assert counted(samples_of(world)) == {"holding": 0, "released": 0}
    assert world.status.restarts.total == 1


async def test_a_released_job_can_be_suspended_and_resumed() -> None:
    world = World(steps=400)
    world.apply(lifecycle=LIFECYCLE, scheduling={"backend": "none"})
    await world.until(state="Running", step=3)
    world.cluster.full.add("node-1")
    world.kill_pod("demo-trainer-1")
    for _ in range(LIMIT + 5):
        await world.turn()
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    world.cluster.full.clear()
    world.request("n2", "resume")
    await world.until(state="Running", attempt=2)


def waiting(backend: str = "none", **scheduling: Any) -> Job:
    """Between attempts: trainer 1 has no node."""
    job = make_job(lifecycle=LIFECYCLE, scheduling={"backend": backend, **scheduling})
    job = job.with_attempt(ended_at=stamp(NOW - 100)).with_rollout()
    return job.changing_pod(1, node="", ip="", running=False, ready=False, phase="Pending", unschedulable="no room")


@pytest.mark.parametrize(("backend", "paused"), [("none", True), ("kueue", True), ("volcano", False)])
def test_what_each_scheduler_allows(backend: str, paused: bool) -> None:
    job = waiting(backend, **({} if backend == "none" else {"queue": "q"}))
    first = job.decide()
    assert (first.status.stranded_since, first.delete) == (stamp(NOW), ())
    assert first.status.message.startswith("waiting for trainer pods: demo-trainer-1: cannot be scheduled: no room; ")
    last = replace(job, status=first.status).decide(NOW + LIMIT)
    assert {pod.name for pod in last.delete} == {"demo-trainer-0", "demo-rollout-0"}
    assert last.status.released_until == (stamp(NOW + 2 * LIMIT) if paused else "")
    (event,) = [e for e in last.events if e.reason == reasons.STRANDED]
    assert event.message.endswith("demo-trainer-1 has no node: no room")


def test_pods_that_cannot_be_released_are_no_reason_to_release_anything() -> None:
    """A pod on a silent node, and one that does not end."""
    job = waiting().with_status(stranded_since=stamp(NOW - 1000))
    job = replace(job, pods=tuple(p for p in job.pods if p.role == "trainer"))
    for fields in ({"lost_since": NOW - 1000}, {"deleting": True, "delete_by": NOW - 1000}):
        decision = job.changing_pod(0, **fields).decide()
        assert (decision.delete, decision.status.stranded_since) == ((), "")


def test_an_attempt_that_waits_for_rollouts_without_nodes_is_drained_first() -> None:
    job = make_job(lifecycle=LIFECYCLE, scheduling={"backend": "none"}).with_attempt().running(step=5, phase="waiting")
    job = job.with_rollout(node="", ip="", running=False, ready=False, phase="Pending")
    first = job.next()
    assert first.stranded_since == stamp(NOW) and first.attempt and first.attempt.command == "run"
    second = replace(job, status=first).next(NOW + LIMIT)
    assert second.attempt and (second.attempt.command, second.attempt.reason) == ("drain", reasons.STRANDED)
    drained = replace(job, status=second).reported(state="stopped", result="drained").decide(NOW + LIMIT + 1)
    assert {pod.name for pod in drained.delete} == {"demo-trainer-0", "demo-trainer-1"}
    assert drained.status.restarts.counted == 0


def test_times_that_were_written_before_the_clock_was_set_back_do_not_count() -> None:
    released = waiting().with_status(released_until=stamp(NOW + 86_400)).next()
    assert (released.released_until, released.stranded_since) == ("", stamp(NOW))
    assert waiting().with_status(stranded_since=stamp(NOW + 86_400)).next().stranded_since == stamp(NOW)


def test_an_attempt_that_generates_with_fewer_rollouts_goes_on() -> None:
    job = (
        make_job(lifecycle=LIFECYCLE, scheduling={"backend": "none"}).with_attempt().running(step=5, phase="generating")
    )
    job = job.with_rollout(node="", running=False, ready=False).with_status(stranded_since=stamp(NOW - 1000))
    status = job.next()
    assert status.attempt and (status.attempt.command, status.stranded_since) == ("run", "")
