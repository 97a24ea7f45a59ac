"""The work queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rljob_operator.endpoints import LIMIT, HealthCheck
from rljob_operator.kube.api import ApiError, Conflict
from rljob_operator.reconcile import queue
from rljob_operator.reconcile.queue import Key, Reconcile, WorkQueue
from simulator.patience import until

A, B = ("research", "a"), ("research", "b")


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
        started.set()
        await go_on.wait()

    async with running(work) as found:
        found.add_after(A, 0.0)
        await started.wait()
        for _ in range(50):
            found.add_after(A, 0.0)
        found.add_after(B, 0.0)
        await until(lambda: len(passes) == 2)
        await asyncio.sleep(0.05)
        assert passes == [A, B], "one worker per key, and others do not wait"
        go_on.set()
        await until(lambda: len(passes) == 3)
        await asyncio.sleep(0.05)
        assert passes == [A, B, A]


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
        kept = [value for value in vars(found).values() if isinstance(value, dict | set)]
        assert len(kept) == 4
        await until(lambda: not any(kept))


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
        await asyncio.sleep(10)

    async with running(work) as found:
        for name in "abc":
            found.add_after(("research", name), 0.0)
        await until(lambda: found.lag() >= 0.05)  # two workers, three keys


async def test_nothing_lags_while_another_operator_leads() -> None:
    waiting = WorkQueue()
    with waiting.open():
        waiting.add_after(A, 0.0)
        await asyncio.sleep(0.05)
        assert waiting.lag() == 0.0


async def test_what_is_due_later_is_no_lag() -> None:
    async def work(key: Key) -> None:
        pass

    async with running(work) as found:
        found.add_after(A, 60.0)
        await asyncio.sleep(0.05)
        assert found.lag() == 0.0


def test_the_health_check_is_bad_when_a_job_waits_too_long() -> None:
    health_check = HealthCheck()
    assert health_check.problem(lag=0) == ""
    assert health_check.problem(lag=LIMIT + 1) == "a job has been waiting for 181 s"
