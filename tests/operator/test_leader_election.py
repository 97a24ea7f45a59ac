"""The lease: one operator acts, and another one takes its place."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rljob_operator.endpoints import LIMIT, HealthCheck
from rljob_operator.kube import leader_election as lease
from rljob_operator.kube.api import ApiError, Object
from rljob_operator.kube.leader_election import LeaderElector
from simulator.cluster import BrokenCluster, FakeCluster
from simulator.patience import SECONDS, until


def test_the_health_check_is_bad_when_nobody_asks_for_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    health_check, now = HealthCheck(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LIMIT + 1)
    assert health_check.problem(lag=0) == "the lease has not been asked for for 181 s"
    health_check.heartbeat()
    assert health_check.problem(lag=0) == ""


async def test_an_api_server_that_does_not_answer_is_no_reason_to_start_the_operator_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    beats: list[int] = []
    waiting = LeaderElector(BrokenCluster(), "rljob-system", "one", lambda: beats.append(1))
    asking = asyncio.create_task(waiting.acquire())
    await until(lambda: len(beats) > 2)
    assert asking.cancel()


async def test_a_second_operator_waits_for_the_lease_and_gets_a_released_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    cluster = FakeCluster()
    beats: list[int] = []
    first, second = (LeaderElector(cluster, "rljob-system", name, lambda: beats.append(1)) for name in ("one", "two"))
    await first.acquire()
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    asked = len(beats)
    await until(lambda: len(beats) > asked + 2)
    assert not waiting.done()
    await first.release_lease()
    await asyncio.wait_for(waiting, SECONDS)
    assert cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] == "two"
    assert beats


async def test_the_lease_of_a_dead_operator_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(lease, "LEASE_DURATION", 0.1)
    cluster = FakeCluster()
    await LeaderElector(cluster, "rljob-system", "dead", lambda: None).acquire()
    await asyncio.wait_for(LeaderElector(cluster, "rljob-system", "next", lambda: None).acquire(), SECONDS)


async def test_what_others_write_around_the_lease_of_a_dead_operator_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(lease, "LEASE_DURATION", 0.1)
    cluster = FakeCluster()
    await LeaderElector(cluster, "rljob-system", "dead", lambda: None).acquire()

    def annotate() -> None:
        """As often as the next one looks."""
        cluster.edit("Lease", "rljob-system", lease.NAME)["metadata"]["annotations"] = {"seen": str(cluster.version)}

    await asyncio.wait_for(LeaderElector(cluster, "rljob-system", "next", annotate).acquire(), SECONDS)


async def test_an_operator_that_cannot_renew_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(lease, "RENEW_DEADLINE", 0.05)
    with pytest.raises(lease.LeaseLost):
        await asyncio.wait_for(LeaderElector(BrokenCluster(), "rljob-system", "one", lambda: None).renew(), SECONDS)


class FadingCluster(FakeCluster):
    """Its first answer comes late, and to whom it gave that it says nothing more."""

    async def create(self, obj: Object) -> Object:
        created = await super().create(obj)
        await asyncio.sleep(0.4)  # counts, of the 1 s that a lease may go without being renewed
        return created

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        if obj["spec"]["holderIdentity"] == "one":
            await asyncio.sleep(60)
        return await super().replace(obj, subresource)


async def test_an_operator_gives_up_before_another_can_take_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from when it asked for what was granted last, and though it waits for an answer."""
    for name, seconds in (("RETRY_PERIOD", 0.1), ("RENEW_DEADLINE", 1.0), ("LEASE_DURATION", 2.5)):
        monkeypatch.setattr(lease, name, seconds)
    cluster = FadingCluster()
    first, second = (LeaderElector(cluster, "rljob-system", name, lambda: None) for name in ("one", "two"))
    await first.acquire()
    others = asyncio.create_task(second.acquire())
    with pytest.raises(lease.LeaseLost):
        await asyncio.wait_for(first.renew(), SECONDS)
    assert not others.done()
    await asyncio.wait_for(others, SECONDS)


async def test_an_operator_that_sees_another_holder_gives_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    cluster = FakeCluster()
    held = LeaderElector(cluster, "rljob-system", "one", lambda: None)
    await held.acquire()
    cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] = "thief"
    assert held.is_leader()
    with pytest.raises(lease.LeaseLost):
        await asyncio.wait_for(held.renew(), SECONDS)
    assert not held.is_leader(), "although the lease would have lasted"


class Work:
    """What an operator does while it leads: it waits, and takes a while to end."""

    def __init__(self) -> None:
        self.terms: list[str] = []

    async def __call__(self) -> None:
        self.terms.append("begins")
        try:
            await asyncio.sleep(10 * SECONDS)
        finally:
            await asyncio.sleep(0.05)
            self.terms.append("has ended")


class Outages(FakeCluster):
    """An API server that can be away."""

    away = False

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        if self.away:
            raise ApiError(0, "connection refused")
        return await super().get(kind, namespace, name)


@asynccontextmanager
async def leading(elector: LeaderElector, work: Work) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(elector.lead(work))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_work_begins_anew_after_an_outage_in_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    monkeypatch.setattr(lease, "RENEW_DEADLINE", 0.5)
    cluster, work = Outages(), Work()
    elector = LeaderElector(cluster, "rljob-system", "one", lambda: None)
    async with leading(elector, work) as task:
        for term in range(1, 4):
            await until(lambda: len(work.terms) == 2 * term - 1)  # noqa: B023
            assert elector.is_leader()
            cluster.away = True
            await until(lambda: len(work.terms) == 2 * term)  # noqa: B023
            assert not elector.is_leader() and not task.done()
            cluster.away = False
        assert work.terms == ["begins", "has ended"] * 3, "one at a time"
        await until(lambda: len(work.terms) == 7)
    assert cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] == "", "it is given back"


async def test_the_work_ends_when_another_operator_takes_the_lease_and_begins_when_that_one_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    cluster, works = FakeCluster(), (Work(), Work())
    first, second = (LeaderElector(cluster, "rljob-system", name, lambda: None) for name in ("one", "two"))
    async with leading(first, works[0]):
        await until(lambda: works[0].terms == ["begins"])
        async with leading(second, works[1]):
            cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] = "two"
            await until(lambda: works[1].terms == ["begins"])
            await until(lambda: works[0].terms == ["begins", "has ended"])
            assert second.is_leader() and not first.is_leader()
        await until(lambda: works[0].terms == ["begins", "has ended", "begins"])
        assert works[1].terms == ["begins", "has ended"]


async def test_a_lease_that_somebody_took_and_deleted_is_held_again_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)
    cluster, work, beats = FakeCluster(), Work(), list[int]()
    elector = LeaderElector(cluster, "rljob-system", "one", lambda: beats.append(1))
    async with leading(elector, work):
        await until(lambda: work.terms == ["begins"])
        cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] = "thief"
        await until(lambda: work.terms == ["begins", "has ended"])
        cluster.remove(cluster.objects["Lease", "rljob-system", lease.NAME])
        await until(lambda: len(work.terms) == 3)
        beats.clear()
        await until(lambda: len(beats) > 5)
        assert work.terms == ["begins", "has ended", "begins"] and elector.is_leader()


async def test_an_error_of_the_work_itself_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> None:
        raise ValueError("unsound")

    elector = LeaderElector(FakeCluster(), "rljob-system", "one", lambda: None)
    with pytest.RaisesGroup(ValueError):
        await asyncio.wait_for(elector.lead(broken), SECONDS)
