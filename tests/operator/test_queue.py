"""The work queue."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import pytest

from rljob_operator.endpoints import LIMIT, HealthCheck
from rljob_operator.kube.api import ApiError, Conflict
from rljob_operator.reconcile import queue
from rljob_operator.reconcile.queue import Key, Reconcile, WorkQueue
from simulator.patience import until

A, B, C = ("research", "a"), ("research", "b"), ("research", "c")


@asynccontextmanager
async def running(work: Reconcile) -> AsyncIterator[WorkQueue]:
    found = WorkQueue(workers=2)
    with found.open():
        task = asyncio.create_task(found.run(work))
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "COOL_DOWN", 0.02)
    monkeypatch.setattr(queue, "FIRST_RETRY", 0.02)


async def test_a_burst_of_events_is_one_pass_and_one_more() -> None:
    passes: list[Key] = []
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> None:
        passes.append(key)
        if key == A:
            started.set()
            await go_on.wait()

    async with running(work) as found:
        found.add_after(A, 0.0)
        await started.wait()
        for _ in range(50):
            found.add_after(A, 0.0)
        found.add_after(B, 0.0)
        found.add_after(C, 0.0)
        await until(lambda: len(passes) == 3)
        assert passes == [A, B, C], "one worker per key, and others do not wait"
        go_on.set()
        await until(lambda: len(passes) == 4 and not found._ready_at)
        found.add_after(C, 0.0)
        await until(lambda: len(passes) == 5)
        assert passes == [A, B, C, A, C]


async def test_nothing_is_kept_of_keys_that_do_not_come_again() -> None:
    async def work(key: Key) -> None:
        if key == B and not failed:
            failed.append(key)
            raise ValueError("broken")

    failed: list[Key] = []
    async with running(work) as found:
        found.add_after(A, 0.0)
        found.add_after(B, 0.0)
        await until(lambda: bool(failed))
        kept = [value for value in vars(found).values() if isinstance(value, dict | set | deque)]
        assert len(kept) == 6
        await until(lambda: not any(kept))


@contextmanager
def counting_calls() -> Iterator[list[int]]:
    """Counts calls of Python functions, those of the event loop included."""
    calls, before = [0], sys.getprofile()

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def calls_per_reconcile(*, news: int, later: int) -> float:
    """What it takes to work on so many keys that are added at once, while others wait for their time."""
    done, everything = 0, asyncio.Event()

    async def work(key: Key) -> None:
        nonlocal done
        done += 1
        if done == news:
            everything.set()

    async with running(work) as found:
        for number in range(later):
            found.add_after(("later", str(number)), 3600.0)
        with counting_calls() as calls:
            for number in range(news):
                found.add_after(("now", str(number)), 0.0)
            await everything.wait()
    return calls[0] / news


async def test_what_a_reconcile_takes_does_not_grow_with_the_number_of_keys_that_wait() -> None:
    """But for the logarithm, in which timers are sorted: with a look at every key it was a hundred times as much for 10,000."""
    few = await calls_per_reconcile(news=100, later=0)
    for many in (1000, 10_000):
        assert await calls_per_reconcile(news=100, later=many) < 4 * few, "others are due later"
        assert await calls_per_reconcile(news=many, later=0) < 4 * few, "all of them are due"


async def test_a_key_that_is_put_off_again_and_again_leaves_nothing_behind() -> None:
    """As one that is to come again in minutes, and is asked for by events until then."""

    async def work(key: Key) -> float:
        passes.append(key)
        return 3600.0

    passes: list[Key] = []
    async with running(work) as found:
        for number in range(10):
            found.add_after(A, 0.0)
            await until(lambda wanted=number: len(passes) > wanted)
        assert [len(found._due), len(found._timers), len(found._line)] == [1, 1, 0]


async def test_keys_are_worked_on_in_the_order_in_which_they_became_due() -> None:
    passes: list[Key] = []
    started, go_on = asyncio.Event(), asyncio.Event()

    async def work(key: Key) -> None:
        passes.append(key)
        started.set()
        await go_on.wait()

    names = [("research", name) for name in "abcdefg"]
    async with running(work) as found:
        found.add_after(names[0], 0.0)
        found.add_after(names[1], 0.0)  # both workers are busy
        await started.wait()
        for place, key in reversed([*enumerate(names[2:])]):
            found.add_after(key, 0.02 * (place + 1))
        found.add_after(names[2], 3600.0)  # to ask for it later, too, changes nothing
        await until(lambda: len(found._line) == 5)
        go_on.set()
        await until(lambda: len(passes) == 7)
    assert passes == names


async def test_a_key_comes_again_when_it_said() -> None:
    times: list[float] = []

    async def work(key: Key) -> float | None:
        times.append(asyncio.get_running_loop().time())
        return 0.1 if len(times) == 1 else None

    async with running(work) as found:
        found.add_after(A, 0.0)
        await until(lambda: len(times) == 2)
    assert times[1] - times[0] >= 0.1


async def test_a_failed_pass_is_repeated_and_a_conflict_at_once() -> None:
    errors: list[Exception] = [ValueError("broken"), Conflict(409, "changed")]
    passes: list[Key] = []

    async def work(key: Key) -> None:
        passes.append(key)
        if errors:
            raise errors.pop(0)

    async with running(work) as found:
        found.add_after(A, 0.0)
        await until(lambda: passes == [A, A, A])


async def test_a_conflict_that_does_not_end_is_an_error_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    passes: list[Key] = []

    async def work(key: Key) -> None:
        passes.append(key)
        raise Conflict(409, "somebody took our label away")

    async with running(work) as found:
        found.add_after(A, 0.0)
        await until(lambda: "research/a: 409: somebody took our label away; again in" in caplog.text)
    assert len(passes) == queue.CONFLICTS + 1, "the first of them were repeated at once"


async def test_a_key_that_fails_for_days_does_not_end_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.0 ** 1024 is no float: at one retry a minute that is reached within a day."""
    monkeypatch.setattr(queue, "COOL_DOWN", 0.0)
    monkeypatch.setattr(queue, "LONGEST_RETRY", 0.0)
    failures = 0

    async def work(key: Key) -> None:
        nonlocal failures
        failures += 1
        raise ApiError(500, "broken")

    async with running(work) as found:
        found.add_after(A, 0.0)
        await until(lambda: failures > 1100)


async def test_the_queue_knows_how_far_it_is_behind() -> None:
    async def work(key: Key) -> None:
        await asyncio.Event().wait()

    async with running(work) as found:
        for name in "abc":
            found.add_after(("research", name), 0.0)
        await until(lambda: found.lag() >= 0.05)  # two workers, three keys


async def test_nothing_lags_while_another_operator_leads() -> None:
    waiting = WorkQueue()
    with waiting.open():
        waiting.add_after(A, 0.0)
        await until(lambda: bool(waiting._line))
        assert waiting.lag() == 0.0


async def test_what_is_due_later_is_no_lag() -> None:
    passes: list[Key] = []

    async def work(key: Key) -> None:
        passes.append(key)

    async with running(work) as found:
        found.add_after(A, 60.0)
        found.add_after(B, 0.0)
        await until(lambda: passes == [B])
        assert found.lag() == 0.0


def test_the_health_check_is_bad_when_a_job_waits_too_long() -> None:
    health_check = HealthCheck()
    assert health_check.problem(lag=0) == ""
    assert health_check.problem(lag=LIMIT + 1) == "a job has been waiting for 181 s"
