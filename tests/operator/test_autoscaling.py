"""How many worker pods there are where their calls decide: the policy alone, with what the driver counts, and in a life of a job."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import names, reasons
from rljob_api.protocol import WorkerLoad
from rljob_api.spec.processes import Autoscaling, Workers
from rljob_operator.policies.autoscaling import wanted
from rljob_trainer.workers.load import Peak
from simulator.feed import Faults
from simulator.life import end, kill_after_writes, live
from simulator.scraping import samples_of
from simulator.world import NAMESPACE, World

DOWN = 30
OF_WORKERS = names.gang("demo", "worker")


def workers(least: int = 2, most: int = 8) -> Workers:
    return Workers(replicas=most, autoscaling=Autoscaling(min_replicas=least, calls_per_replica=4, down_seconds=DOWN))


def load(needed: int, enough: int | None = None) -> WorkerLoad:
    return WorkerLoad(calls=4 * needed, needed=needed, enough=enough)


@pytest.mark.parametrize(
    ("now", "reported", "expected"),
    [
        (0, None, 2),
        (5, None, 5),
        (9, None, 8),
        (2, load(5), 5),
        (2, load(5, enough=5), 5),
        (2, load(100), 8),
        (5, load(3), 5),
        (5, load(3, enough=4), 4),
        (5, load(3, enough=5), 5),
        (5, load(0, enough=0), 2),
        (7, load(0, enough=6), 6),
        (7, load(0, enough=2**31 - 1), 7),
        (7, load(3, enough=0), 3),
        (5, load(7, enough=3), 7),
    ],
    ids=str,
)
def test_there_are_as_many_as_are_needed_at_once_and_fewer_when_fewer_are_enough(
    now: int, reported: WorkerLoad | None, expected: int
) -> None:
    assert wanted(workers(), now, reported) == expected


COUNT = st.integers(0, 12) | st.sampled_from([2**31 - 1])
LOAD = st.builds(WorkerLoad, calls=COUNT, needed=COUNT, enough=COUNT | st.none())
BOUNDS = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda two: workers(min(two), max(two)))


@given(BOUNDS, COUNT, LOAD | st.none())
def test_whatever_a_driver_says_the_number_is_within_its_bounds(
    bounds: Workers, now: int, reported: WorkerLoad | None
) -> None:
    pods = wanted(bounds, now, reported)
    assert bounds.fewest <= pods <= bounds.replicas
    assert wanted(bounds, pods, reported) == pods, "what was decided is not decided anew"
    if reported:
        assert pods >= min(reported.needed, bounds.replicas)
        assert pods >= min(now, bounds.replicas if reported.enough is None else reported.enough, bounds.replicas)


@given(BOUNDS, COUNT, LOAD, st.sampled_from(["needed", "enough"]), COUNT)
def test_more_calls_never_mean_fewer_pods(bounds: Workers, now: int, less: WorkerLoad, field: str, more: int) -> None:
    value = getattr(less, field)
    greater = less.model_copy(update={field: None if value is None else max(value, more)})
    assert wanted(bounds, now, less) <= wanted(bounds, now, greater)
    assert wanted(bounds, now, less) <= wanted(bounds, max(now, more), less)


MOMENTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9), st.booleans()), min_size=1, max_size=40)
"""Seconds since the one before, the pods that are needed, and whether an operator is there to see it."""


@given(MOMENTS)
def test_no_pod_goes_that_was_needed_within_down_seconds_however_often_the_operator_restarts(
    moments: list[tuple[int, int, bool]],
) -> None:
    """All that an operator remembers is the number of pods."""
    bounds, clock, seen, pods = workers(), 0.0, list[tuple[float, int]](), 0
    peak = Peak(DOWN, lambda: clock)
    for seconds, needed, is_seen in moments:
        clock += seconds
        most = peak.of(needed)
        if not is_seen:
            continue
        seen.append((clock, needed))
        before, pods = pods, wanted(bounds, pods, load(most, most if peak.is_whole else None))
        most_needed = max(count for at, count in seen if at >= clock - DOWN)
        assert pods >= min(most_needed, bounds.replicas)
        assert pods <= max(before, most, bounds.fewest)
        assert pods >= before or clock >= DOWN, "nobody has counted for so long"


# A life of a job


def working(least: int = 1, most: int = 6) -> dict[str, Any]:
    """spec.rollout with an agent in pods that come and go."""
    scaling = {"minReplicas": least, "callsPerReplica": 4, "downSeconds": DOWN}
    agent = {"python": {"path": "/data/agent.py"}, "maxTurns": 2, "maxTokens": 16}
    own = {"replicas": most, "autoscaling": scaling}
    return {"replicas": 1, "sampling": {"maxTokens": 8}, "agent": agent | {"workers": own}}


def pods(world: World, role: str = "worker") -> dict[str, str]:
    """Uids by name."""
    metas = (p["metadata"] for p in world.cluster.pods(NAMESPACE))
    return {m["name"]: m["uid"] for m in metas if m["name"].startswith(f"demo-{role}-")}


async def counts(world: World, role: str = "worker", **said: Any) -> None:
    """The driver says so, and everybody acts on it."""
    rank0 = world.launcher(0)
    assert rank0.progress
    rank0.progress = rank0.progress.model_copy(update={"workers": {role: WorkerLoad(**said)}})
    for _ in range(4):
        await world.turn()


async def running(**changes: Any) -> World:
    world = World(steps=400)
    world.apply(**{"rollout": working()} | changes)
    await world.until(state="Running", step=2)
    return world


async def test_pods_come_with_calls_and_go_without_a_restart_and_an_operator_forgets_nothing() -> None:
    world = await running()
    assert len(pods(world)) == 1 and world.status.workers.text == "1/1"
    trainers = pods(world, "trainer")
    await counts(world, calls=17, needed=5)
    first = pods(world)
    assert sorted(first) == [names.pod("demo", "worker", i) for i in range(5)] and world.status.workers.text == "5/5"
    assert reasons.WORKERS_SCALED in world.events()
    world.restart_operator()
    await counts(world, calls=2, needed=1)
    assert pods(world) == first, "nobody knows yet that so few are enough"
    await counts(world, calls=2, needed=1, enough=4)
    assert len(pods(world)) == 4, "a call runs in the fourth"
    world.restart_operator()
    await counts(world, calls=2, needed=1, enough=3)
    assert len(pods(world)) == 3
    await counts(world, needed=0, enough=0)
    assert len(pods(world)) == 1 and pods(world).items() <= first.items(), "the first one has stayed all the time"
    assert pods(world, "trainer") == trainers and world.status.attempt and world.status.attempt.number == 1
    assert "next attempt" not in world.status.message


async def test_a_driver_that_has_just_begun_changes_nothing_and_a_resumed_job_begins_with_the_fewest() -> None:
    world = await running()
    await counts(world, calls=17, needed=5)
    world.launcher(1).fail("application", "ValueError", world.now)
    await world.until(state="Running", attempt=2)
    assert len(pods(world)) == 5 and world.status.worker_replicas == {"worker": 5}
    world.request("n1", "suspend")
    await world.until(state="Suspended")
    await world.turn()
    assert pods(world) == {} and world.status.worker_replicas == {}
    world.request("n2", "resume")
    await world.until(state="Running")
    assert len(pods(world)) == 1


async def test_another_largest_number_applies_at_once_and_other_fields_with_the_next_attempt() -> None:
    world = await running()
    await counts(world, calls=100, needed=25)
    assert len(pods(world)) == 6
    world.edit_spec(rollout=working(most=4))
    await counts(world, calls=100, needed=25)
    assert len(pods(world)) == 4 and "next attempt" not in world.status.message
    world.edit_spec(rollout=working(least=3, most=4))
    await counts(world, needed=0, enough=0)
    assert len(pods(world)) == 1 and "next attempt" in world.status.message
    world.request("n1", "restart")
    await world.until(state="Running", attempt=2)
    assert len(pods(world)) == 3


async def test_pods_of_a_reward_come_and_go_by_their_own_calls() -> None:
    scaling = {"replicas": 3, "autoscaling": {"callsPerReplica": 8}}
    judge = {"python": {"path": "/data/judge.py"}, "workers": scaling}
    world = await running(rewards=[{"rule": "exactMatch", "dataSource": "else"}, judge])
    await counts(world, role="scorer1", calls=30, needed=4)
    assert (len(pods(world)), len(pods(world, "scorer1"))) == (1, 3)
    assert world.status.scorers["scorer1"].text == "3/3"


async def test_what_is_reported_of_pods_that_follow_no_calls_changes_nothing() -> None:
    world = await running(rollout=working() | {"agent": working()["agent"] | {"workers": {"replicas": 2}}})
    await counts(world, calls=100, needed=25, enough=0)
    await counts(world, role="trainer", needed=25)
    assert len(pods(world)) == len(pods(world, "trainer")) == 2 and world.status.worker_replicas == {}
    assert "trainer" not in world.status.progress.worker_calls


async def test_metrics_count_pods_and_calls() -> None:
    world = await running()
    await counts(world, calls=17, needed=5)
    for _ in range(40):
        await world.turn()
    found = {(s.name, s.labels.get("role")): s.value for s in samples_of(world)}
    assert found["rljob_job_workers", None] == found["rljob_job_ready_workers", None] == 5.0
    assert found["rljob_job_worker_calls", "worker"] == 17.0


async def test_a_job_whose_workers_are_scaled_lives_as_one_without_and_survives_an_operator_that_is_killed() -> None:
    found = await live(World(steps=12), rollout=working())
    assert end(found) == end(await live(World(steps=12)))
    await kill_after_writes(every=11, rollout=working())


async def test_a_queue_that_grows_wakes_the_operator_at_once() -> None:
    """Numbers alone wake it twice a minute."""
    world = World(steps=400, faults=Faults(relist=10**9), progress_interval=30.0)
    world.apply(rollout=working())
    await world.until(state="Running", step=2)
    world._run = lambda: None  # type: ignore[method-assign]
    await counts(world, calls=17, needed=5)
    assert len(pods(world)) == 5
    await counts(world, calls=8, needed=2, enough=2)
    assert len(pods(world)) == 2
