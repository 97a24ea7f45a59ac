"""A large job gets its nodes although small ones keep coming, also if some of these never end."""

from typing import Any

import pytest

from rljob_api.policy import JobPolicy
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.schedulers.builtin import cycle
from rljob_operator.schedulers.builtin.reservations import Holder
from rljob_operator.times import seconds
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang, Placement, Stay
from rljob_placement.plan import plan
from simulator.crowd import Crowd
from simulator.site import NAMESPACE


async def stream(crowd: Crowd, count: int, wanted: str) -> bool:
    """Small jobs, each of which fills a node, end one by one, and others wait for every node. Whether the wanted job gets nodes."""
    for i in range(4):
        crowd.apply(f"small-{i}", trainers=1)
    await crowd.turns(3)
    crowd.apply(wanted, trainers=5)
    for i in range(4, 4 + count):
        crowd.apply(f"small-{i}", trainers=1)
        await crowd.turns(12)
        if crowd.on_nodes(wanted):
            return True
        crowd.delete(next(job for job in crowd.jobs() if crowd.on_nodes(job)))
    return False


def crowd_of(nodes: int, reserve_after: int) -> Crowd:
    return Crowd({f"n{i}": 2 for i in range(nodes)}, policy=JobPolicy(reserve_after_seconds=reserve_after))


@pytest.mark.parametrize(("reserve_after", "starves"), [(10, False), (10_000, True)])
async def test_a_stream_of_small_jobs_starves_a_large_one_only_without_a_reservation(
    reserve_after: int, starves: bool
) -> None:
    crowd = crowd_of(4, reserve_after)
    assert await stream(crowd, 12, "large") is not starves
    assert len(crowd.on_nodes("large")) == (0 if starves else 6)


@pytest.mark.parametrize("endless", [("n0", "n1"), ("n2", "n3")])
async def test_a_large_job_gets_its_nodes_although_some_jobs_never_end(endless: tuple[str, str]) -> None:
    """One of the two choices is the reservation that is made first."""
    crowd = crowd_of(4, 10)
    for i in range(4):
        crowd.apply(f"small-{i}", trainers=1)
    await crowd.turns(3)
    crowd.apply("large", trainers=3)
    for i in range(4, 12):
        crowd.apply(f"small-{i}", trainers=1)
        await crowd.turns(12)
        ends = (j for j in crowd.jobs() if j != "large" and {*crowd.on_nodes(j).values()}.isdisjoint(endless))
        if crowd.on_nodes("large"):
            break
        crowd.delete(next(job for job in ends if crowd.on_nodes(job)))
    assert {*crowd.on_nodes("large").values()} == {"n0", "n1", "n2", "n3"}.difference(endless)


async def test_it_says_since_when_it_waits_and_what_it_reserves() -> None:
    crowd = crowd_of(5, 10)
    for i in range(5):
        crowd.apply(f"running-{i}", trainers=1)
    await crowd.turns(3)
    crowd.apply("large", trainers=5)
    await crowd.turns(5)
    waits = crowd.status("large").placement
    assert waits.waiting_since and not waits.reserved
    await crowd.turns(15)
    kept = crowd.status("large").placement.reserved
    assert len(kept) == 3
    message = crowd.status("large").message
    assert message.endswith(f"; waits since {waits.waiting_since}, and reserves {', '.join(kept)}")
    homes = {next(iter(crowd.on_nodes(f"running-{i}").values())): f"running-{i}" for i in range(5)}
    crowd.delete(homes[kept[0]])
    crowd.apply("small", trainers=1)
    await crowd.turns(10)
    assert not crowd.on_nodes("small"), "the node is kept"
    elsewhere = next(node for node in sorted(homes) if node not in kept)
    crowd.delete(homes[elsewhere])
    await crowd.turns(10)
    assert not crowd.on_nodes("small")
    exchanged = crowd.status("large").placement.reserved
    assert {kept[0], elsewhere} < {*exchanged} and {*exchanged} < {*kept, elsewhere}, "it is free already"
    crowd.restart_operator()
    await crowd.turns(10)
    assert {kept[0], elsewhere} < {*crowd.status("large").placement.reserved}
    last = next(node for node in crowd.status("large").placement.reserved if node not in (kept[0], elsewhere))
    crowd.delete(homes[last])
    await crowd.turns(10)
    assert {*crowd.on_nodes("large").values()} == {kept[0], elsewhere, last}
    assert not crowd.status("large").placement.reserved


async def test_of_two_that_are_overdue_the_first_in_the_queue_reserves() -> None:
    crowd = crowd_of(4, 5)
    for i in range(4):
        crowd.apply(f"running-{i}", trainers=1, priority=100)
    await crowd.turns(3)
    crowd.apply("low", trainers=3)
    await crowd.turns(3)
    crowd.apply("high", trainers=3, priority=10)
    await crowd.turns(20)
    assert crowd.status("high").placement.reserved and not crowd.status("low").placement.reserved


async def test_a_job_that_can_never_fit_reserves_nothing() -> None:
    crowd = crowd_of(2, 5)
    crowd.apply("running", trainers=1)
    await crowd.turns(3)
    crowd.apply("too-large", trainers=9)
    crowd.apply("small", trainers=1)
    await crowd.turns(20)
    assert not crowd.status("too-large").placement.reserved and crowd.on_nodes("small")


HOPELESS = {
    "too large": {"trainers": 50},
    "claims of a template that is not there": {
        "trainers": 1,
        "trainer": {
            "nodes": 1,
            "template": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "absent"}]},
        },
    },
}


@pytest.mark.parametrize("hopeless", HOPELESS)
async def test_jobs_that_can_never_fit_do_not_keep_others_from_reserving(hopeless: str) -> None:
    crowd = crowd_of(4, 5)
    for i in range(4):
        crowd.apply(f"running-{i}", trainers=1)
    await crowd.turns(3)
    for i in range(6):
        changes = HOPELESS[hopeless]
        crowd.apply(f"hopeless-{i}", **changes | {"trainers": changes["trainers"] + i, "priority": 10})
        await crowd.turns(1)
    crowd.apply("large", trainers=3)
    await crowd.turns(25)
    assert len(crowd.status("large").placement.reserved) == 2
    assert not any(crowd.status(f"hopeless-{i}").placement.reserved for i in range(6))


WHOLE = Demand({"gpu": 8000, "pods": 1000}, {})


def request(number: int, trainers: int, **fields: Any) -> SchedulingRequest:
    return SchedulingRequest(
        job=("ns", f"job-{number}"),
        uid=str(number),
        created=f"2026-{number:05}",
        urgent=True,
        priority=0,
        preempts=False,
        gang=Gang(trainers, 0, 0, WHOLE, WHOLE, (), ()),
        current={},
        stay=Stay(),
        excluded=frozenset(),
        **{"overdue": False} | fields,
    )


def test_jobs_that_would_be_done_before_are_planned_once_for_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = list[int]()

    def counted(cluster: Cluster, gang: Gang, stay: Stay) -> Placement:
        planned.append(gang.trainers)
        return plan(cluster, gang, stay)

    monkeypatch.setattr(cycle, "plan", counted)
    nodes = tuple(Node(f"n{i}", free={"gpu": 8000 if i < 8 else 0, "pods": 10_000}) for i in range(20))
    taken = {"gpu": 8000, "pods": 1000}
    holders = [
        Holder(job=("ns", f"h{i}"), uid="", created="", priority=0, taken={f"n{i}": taken}, leaving=False, ends=1e6)
        for i in range(8, 20)
    ]
    waiting = [request(i, 4 if i < 3 else 9, lasts=600.0) for i in range(1, 40)]
    results, _ = cycle.schedule_pending(Cluster(nodes), [request(0, 16, overdue=True), *waiting], holders, {}, now=0.0)
    assert [v.request.uid for v in results if not v.plan.problem] == ["1", "2"], "on nodes that are reserved"
    assert len([size for size in planned if size < 16]) <= 2 * 3 + 1


def will_take(crowd: Crowd, job: str, steps: int, pace: float) -> None:
    """It has measured so many seconds for a step, of which so many are left."""
    crowd.cluster.edit("RLJob", NAMESPACE, job).setdefault("status", {})["progress"] = {
        "pace": pace,
        "steps": steps,
        "text": "some",
    }


async def waiting_for_a_slow_one(pace: float | None) -> Crowd:
    """Three nodes: one is free, and kept for a large job that needs it and one of two that others hold."""
    crowd = crowd_of(3, 10)
    for name in ("slow", "brief", "other"):
        crowd.apply(name, trainers=1, train={"steps": 100})
    await crowd.turns(3)
    for name in ("slow", "brief", "other"):
        if pace is not None:
            will_take(crowd, name, 100, pace)
    crowd.apply("large", trainers=5)
    await crowd.turns(20)
    crowd.delete("other")
    await crowd.turns(10)
    assert len(crowd.status("large").placement.reserved) == 3
    return crowd


async def test_a_job_that_is_done_before_goes_onto_reserved_nodes_and_one_that_is_not_does_not() -> None:
    crowd = await waiting_for_a_slow_one(pace=60.0)
    crowd.apply("long", trainers=1, lifecycle={"activeDeadlineSeconds": 5000})
    crowd.apply("unknown", trainers=1)
    await crowd.turns(10)
    assert not crowd.on_nodes("long") and not crowd.on_nodes("unknown")
    crowd.apply("short", trainers=1, lifecycle={"activeDeadlineSeconds": 1000, "drainTimeoutSeconds": 60})
    await crowd.turns(10)
    assert crowd.on_nodes("short"), "1,625 s with what starts and slack, and the others take 6,000"
    assert len(crowd.status("large").placement.reserved) == 3, "and the nodes stay reserved"
    crowd.delete("short")
    crowd.apply("again", trainers=1, train={"steps": 40})
    will_take(crowd, "again", 40, 60.0)
    await crowd.turns(10)
    assert crowd.on_nodes("again"), "3,300 s by its own steps, of which it did some before it was preempted"


@pytest.mark.parametrize("edited", [False, True])
async def test_a_job_that_went_before_and_is_not_done_in_time_leaves_the_nodes_to_whom_they_are_reserved_for(
    edited: bool,
) -> None:
    """It never starts an attempt, so its limit does not end it; to extend that does not help it either."""
    crowd = await waiting_for_a_slow_one(pace=60.0)
    crowd.apply("overstays", trainers=1, lifecycle={"activeDeadlineSeconds": 60, "drainTimeoutSeconds": 60})
    await crowd.turns(10)
    until = seconds(crowd.status("overstays").placement.borrowed_until)
    assert crowd.on_nodes("overstays") and 430 < until - crowd.now <= 450, (
        "300 s to start, and a quarter more than its limits"
    )
    if edited:
        crowd.cluster.edit("RLJob", NAMESPACE, "overstays")["spec"]["lifecycle"]["activeDeadlineSeconds"] = 10**8
    for job in ("slow", "brief"):
        crowd.delete(job)
    await crowd.turns(100)
    assert crowd.on_nodes("overstays"), "it has what it was let in for"
    await crowd.turns(int(until - crowd.now) + 90)
    assert len(crowd.on_nodes("large")) == 6
    left = next(c for c in crowd.status("overstays").conditions if c.type == "Preempted")
    assert left.message.endswith("to research/large, which has a higher priority or has reserved them")


async def test_nobody_goes_before_a_reservation_whose_start_nobody_knows() -> None:
    crowd = await waiting_for_a_slow_one(pace=None)
    assert crowd.status("large").placement.expected_at == ""
    crowd.apply("short", trainers=1, lifecycle={"activeDeadlineSeconds": 10, "drainTimeoutSeconds": 1})
    await crowd.turns(10)
    assert not crowd.on_nodes("short")


async def test_the_status_says_when_reserved_nodes_are_expected() -> None:
    crowd = await waiting_for_a_slow_one(pace=60.0)
    status = crowd.status("large")
    assert 5900 < seconds(status.placement.expected_at) - crowd.now < 6100
    assert status.message.endswith(f", expected at {status.placement.expected_at}")
