"""A user's spec, however large, hostile or slow to check, keeps the operator from nothing else."""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from api.hostile_specs import LARGEST, hostile_specs
from api.specs import raw_spec
from rljob_api.policy import JobPolicy
from rljob_api.rules import Violation, validator
from rljob_operator.cache.jobs import LazyValidation
from rljob_operator.endpoints import Metrics
from rljob_operator.reconcile.large_specs import BUSY, FIRST_PAUSE, LargeSpecs
from rljob_operator.render import render
from rljob_operator.watch.polled import DeviceInventory
from simulator.crowd import Crowd
from simulator.makers import make_job
from simulator.objects import job_object
from simulator.world import NAMESPACE, World

LARGE = raw_spec(data={"train": [f"/data/{i}.parquet" for i in range(800)]})
"""Valid, and too large for the event loop."""
LOOP, RECONCILE = 40, 400
"""How many reconciles of an ordinary job's first version the loop may be busy with one hostile job without a pause, and a whole reconcile may cost,
with the processes that it starts: about 50 ms and 0.5 s."""


class Busy:
    """The longest time for which the loop did nothing but one thing, in seconds of its own thread's processor time."""

    longest = 0.0


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    found, run = Busy(), asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        found.longest = max(found.longest, time.thread_time() - began)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events.Handle, "_run", timed)
        yield found


def processor_time() -> float:
    """Seconds of this process and of those that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def cost_of(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Of the first reconcile of a job: the longest time for which the loop was busy, and all processor time."""
    world = World()
    world.cluster.put(job_object("demo", spec))
    world.feed.deliver()
    with watched(monkeypatch) as busy:
        began = processor_time()
        await world.reconcile("demo")
        return busy.longest, processor_time() - began


@pytest.fixture
async def ordinary(monkeypatch: pytest.MonkeyPatch) -> float:
    """Processor time of the first reconcile of an ordinary job whose spec is refused."""
    refused = raw_spec(rewards=[])
    return min([(await cost_of(refused, monkeypatch))[1] for _ in range(5)])


async def costs_too_much(spec: dict[str, Any], ordinary: float, monkeypatch: pytest.MonkeyPatch) -> bool:
    """In each of three tries: what else the machine or the garbage collector does must not decide."""
    for _ in range(3):
        busy, whole = await cost_of(spec, monkeypatch)
        if busy <= max(0.05, LOOP * ordinary) and whole <= max(1.0, RECONCILE * ordinary):
            return False
    return True


@pytest.mark.parametrize(("size", "every"), [(9_000, 41), (60_000, 131), (LARGEST, 97)])
async def test_no_spec_keeps_the_loop_busy(
    size: int, every: int, ordinary: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [found for i, found in enumerate(hostile_specs(size)) if i % every == 0]
    assert [name for name, spec in chosen if await costs_too_much(spec, ordinary, monkeypatch)] == []


async def test_a_large_job_runs_as_others_do() -> None:
    world = World()
    world.apply(data=LARGE["data"])
    await world.until(state="Succeeded", turns=60)


def test_the_largest_job_is_decided_and_rendered_in_a_second() -> None:
    job = make_job(nodes=1024, rollout={"replicas": 3072, "sampling": {"maxTokens": 8}})
    began = time.process_time()
    rendered = render(job.snapshot(), job.decide().status)
    assert time.process_time() - began < 1.0
    assert sum(o["kind"] == "ConfigMap" for o in rendered) == 4096 + 1


async def test_jobs_beside_a_hostile_one_are_placed() -> None:
    crowd = Crowd(nodes={"n1": 8})
    crowd.apply("good", 1)
    for name, keys in (("wide", {f"moe_router_topk_scaling_{i}": 1 for i in range(2_500)}), ("many", {})):
        trainer = (
            {"device": "cpu", "nodes": 1, "transformerConfig": keys} if keys else {"device": "cpu", "nodes": 100_000}
        )
        crowd.cluster.put(job_object(name, raw_spec(trainer=trainer)))
    await crowd.turns(6)
    assert len(crowd.on_nodes("good")) == 2
    assert "has 2500 entries; at most 512 are allowed" in crowd.status("wide").message
    assert "must be at most 1024" in crowd.status("many").message


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many specs are validated without a turn of the loop in between, each time."""
    found, run, admit = [0], asyncio.events.Handle._run, JobPolicy.admit

    def one(handle: asyncio.Handle) -> None:
        found.append(0)
        run(handle)

    def admitted(policy: JobPolicy, raw: dict[str, Any], name: str) -> Any:
        found[-1] += 1
        return admit(policy, raw, name)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events.Handle, "_run", one)
        patched.setattr(JobPolicy, "admit", admitted)
        yield found


MANY = 20
LOOKS: dict[str, tuple[Callable[[Crowd], Awaitable[Any]], int]] = {
    "for devices": (lambda crowd: DeviceInventory(crowd.cluster, crowd.feed.cache).turn(), 0),
    "for metrics": (
        lambda crowd: asyncio.to_thread(list, Metrics(crowd.feed.cache, {}, lambda: 0.0, {}).families()),
        0,
    ),
    "of a scheduling cycle": (lambda crowd: crowd.pass_over("job-7"), MANY),
    "of a new leader": (lambda crowd: crowd.feed.cache.validate(), MANY),
}
"""At all jobs, and how many of them it has to validate."""


@pytest.mark.parametrize("look", LOOKS)
async def test_a_look_at_all_jobs_validates_no_two_new_specs_without_a_turn_of_the_loop(
    look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of jobs that are there when an operator starts would cost it the lease."""
    crowd = Crowd(nodes={"n1": 100})
    for i in range(MANY):
        crowd.apply(f"job-{i}", 1)
    crowd.restart_operator()
    act, validated = LOOKS[look]
    with counted(monkeypatch) as found:
        await asyncio.create_task(act(crowd))
    assert (max(found) <= 2, sum(found)) == (True, validated), "a job's own pass begins with its own spec"


async def test_of_jobs_that_are_new_at_once_the_one_with_priority_is_placed() -> None:
    """Though another one's pass comes first, and nobody has needed its spec before."""
    crowd = Crowd(nodes={"n1": 2})
    crowd.apply("early", 1)
    crowd.apply("urgent", 1, priority=1)
    crowd.restart_operator()
    await crowd.turn(order=["early", "urgent"])
    await crowd.turns(3)
    assert (len(crowd.on_nodes("early")), len(crowd.on_nodes("urgent"))) == (0, 2)


async def test_a_rule_that_raises_refuses_its_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(spec: Any) -> list[Violation]:
        if spec.env:
            raise ZeroDivisionError
        return []

    monkeypatch.setattr(validator, "CHECKS", (*validator.CHECKS, fails))
    crowd = Crowd(nodes={"n1": 8})
    crowd.apply("good", 1)
    crowd.apply("bad", 1, env=[{"name": "A", "value": "1"}])
    await crowd.turns(6)
    assert len(crowd.on_nodes("good")) == 2
    assert "a rule of rljob has failed" in crowd.status("bad").message


async def test_a_spec_that_takes_too_long_is_reported_and_checked_less_and_less_often() -> None:
    specs, now = LargeSpecs(cpu_seconds=0.001), 1_000_000.0
    waits = []
    for _ in range(8):
        changed = LazyValidation(LARGE | {"suspend": bool(len(waits) % 2)}, "demo", JobPolicy())
        wait = await specs.settle((NAMESPACE, "demo"), changed, now)
        (why,) = changed.result.violations
        assert wait is not None and "cannot be checked in 0.001 s of processor time" in why.rule
        assert await specs.settle((NAMESPACE, "demo"), changed, now + wait - 1) == 1, "not before that time"
        waits.append(wait)
        now += wait
    assert waits == [FIRST_PAUSE * min(2**i, 60) for i in range(8)]


async def test_a_job_whose_check_took_too_long_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.apply(data=LARGE["data"])
    monkeypatch.setattr(world.operator._specs, "_cpu_seconds", 0.001)
    world.feed.deliver()
    after = await world.operator((NAMESPACE, "demo"))
    assert after == FIRST_PAUSE
    assert "cannot be checked in 0.001 s" in world.status.message
    assert (world.status.state, world.status.outcome) == ("Failed", "")
    monkeypatch.setattr(world.operator._specs, "_cpu_seconds", 10.0)
    world.elapse(FIRST_PAUSE)
    await world.until(state="Running", turns=60)


async def test_a_slow_check_of_one_job_delays_no_other() -> None:
    """Small specs are not checked behind large ones."""
    specs, large = LargeSpecs(), LazyValidation(LARGE, "large", JobPolicy())
    checking = asyncio.create_task(specs.settle((NAMESPACE, "large"), large, 0.0))
    await asyncio.sleep(0)
    small = LazyValidation(raw_spec(), "small", JobPolicy())
    assert await specs.settle((NAMESPACE, "small"), small, 0.0) is None
    assert small.result.valid and not checking.done()
    further = LazyValidation(LARGE, "further", JobPolicy())
    assert await specs.settle((NAMESPACE, "further"), further, 0.0) == BUSY, "no worker of the queue waits"
    assert further.is_unchecked and not checking.done()
    assert await checking is None
    assert large.result.valid
    assert await specs.settle((NAMESPACE, "further"), further, BUSY) is None


@pytest.mark.parametrize("turns", range(16))
async def test_a_check_that_is_cancelled_ends_and_leaves_no_process(turns: int) -> None:
    known, large = psutil.Process().children(), LazyValidation(LARGE, "large", JobPolicy())
    checking = asyncio.create_task(LargeSpecs().settle((NAMESPACE, "large"), large, 0.0))
    for _ in range(turns):
        await asyncio.sleep(0)
    checking.cancel()
    await asyncio.wait({checking}, timeout=10)
    assert checking.cancelled()
    assert psutil.Process().children() == known


async def test_a_job_that_nobody_has_checked_yet_is_left_alone() -> None:
    world = World()
    world.apply(data=LARGE["data"])
    world.feed.deliver()
    async with world.operator._specs._turn:
        assert await world.operator((NAMESPACE, "demo")) == BUSY
    assert world.cluster.writes == []
    assert await world.operator((NAMESPACE, "demo")) != BUSY
    assert world.cluster.writes != []
