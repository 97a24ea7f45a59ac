"""Nothing is written after the lease is lost, whatever was under way: before a small server that counts what arrives."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import kopf
import pytest
from aiohttp import web

from rljob_operator.kube import leader_election as lease
from rljob_operator.kube.api import ApiError
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.leader_election import LeaderElector
from rljob_operator.operator import Operator, Options
from simulator.cluster import FakeCluster
from simulator.patience import SECONDS, until

POD = {"kind": "Pod", "metadata": {"namespace": "research", "name": "a"}}


class Server:
    """Answers with `status`, or, while it is 0, not at all."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        self.hung_up = 0
        """Requests whose client did not wait for the answer."""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        try:
            while not self.status:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.hung_up += 1
            raise
        return web.json_response({"message": "injected"}, status=self.status)


@asynccontextmanager
async def client(server: Server, may_write: Callable[[], bool]) -> AsyncIterator[KubernetesApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = KubernetesApi(Credentials(lambda: kopf.ConnectionInfo(server=url)), RateLimiter(1e6, 10**6), 32, may_write)
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_PERIOD", 0.01)


def elector(cluster: FakeCluster) -> LeaderElector:
    return LeaderElector(cluster, "rljob-system", "one", lambda: None)


def stolen(cluster: FakeCluster) -> None:
    cluster.edit("Lease", "rljob-system", lease.NAME)["spec"]["holderIdentity"] = "thief"


async def test_who_does_not_hold_the_lease_may_read_and_not_write() -> None:
    cluster, server = FakeCluster(), Server()
    holder = elector(cluster)
    async with client(server, holder.is_leader) as api:
        writes = (
            lambda: api.create(POD),
            lambda: api.replace(POD, "status"),
            lambda: api.patch("Pod", "research", "a", []),
            lambda: api.delete("Pod", "research", "a", "uid"),
        )
        for write in writes:
            with pytest.raises(ApiError, match="another operator may hold the lease"):
                await write()
        await api.get("Pod", "research", "a")
        assert server.asked == ["GET"]
        await holder.acquire()
        for write in writes:
            await write()
        assert server.asked == ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def test_a_lease_that_is_not_renewed_in_time_fences_even_when_nobody_has_noticed_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind an event loop that was busy: the work runs on, and is cancelled only when `lead` gets its turn."""
    monkeypatch.setattr(lease, "RENEW_DEADLINE", 0.3)
    holder, server = elector(FakeCluster()), Server()
    async with client(server, holder.is_leader) as api:
        await holder.acquire()
        await api.create(POD)
        await until(lambda: not holder.is_leader())
        with pytest.raises(ApiError):
            await api.create(POD)
    assert server.asked == ["POST"]


async def test_a_write_that_is_tried_again_is_not_sent_again_after_the_lease_is_lost() -> None:
    cluster, server = FakeCluster(), Server()
    holder, server.status = elector(cluster), 503
    async with client(server, holder.is_leader) as api:
        await holder.acquire()
        writing = asyncio.create_task(api.create(POD))
        await until(lambda: server.asked == ["POST"])
        stolen(cluster)
        with pytest.raises(lease.LeaseLost):
            await holder.renew()
        with pytest.raises(ApiError):
            await asyncio.wait_for(writing, SECONDS)
    assert server.asked == ["POST"]


async def test_requests_under_way_are_given_up_and_work_that_cleans_up_writes_nothing() -> None:
    """A reconcile writes the status at its end even if its other writes have failed."""
    cluster, server = FakeCluster(), Server()
    holder, server.status = elector(cluster), 0
    async with client(server, holder.is_leader) as api:

        async def work() -> None:
            try:
                await api.create(POD)
            finally:
                with suppress(ApiError):
                    await api.replace(POD, "status")

        leading = asyncio.create_task(holder.lead(work))
        await until(lambda: server.asked == ["POST"])
        stolen(cluster)
        await until(lambda: server.hung_up == 1)
        await until(lambda: not holder.is_leader())
        server.status = 200
        assert server.asked == ["POST"]
        leading.cancel()
        await asyncio.wait([leading])
    assert server.asked == ["POST"]


async def test_an_operator_that_waits_for_the_lease_keeps_nothing_of_jobs_that_come_and_go() -> None:
    """Everything is listed and every job is reconciled when it gets the lease, so it need not remember whom events concern."""
    account = kopf.ConnectionInfo(server="http://127.0.0.1:9")
    waiting = Operator(Options(identity="two"), Credentials(lambda: account))
    version = 0
    for i in range(300):
        for what in ("ADDED", "MODIFIED", "DELETED"):
            version += 1
            meta = {"name": f"job-of-many-{i}", "namespace": "research", "uid": str(i), "resourceVersion": str(version)}
            job = {"metadata": meta, "spec": {}, "status": {}}
            waiting._handlers.handle("RLJob", job, gone=what == "DELETED")
    waiting._cache.jobs._deleted.clear()  # remembered on purpose, up to a number
    assert kept(waiting) == set()
    await waiting.close()


def kept(root: object) -> set[str]:
    """Names of jobs in what can be reached from an object of the operator, through its own objects."""
    found, seen, left = set[str](), set[int](), [root]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, str) and one.startswith("job-of-many"):
            found.add(one)
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += list(one)
        elif type(one).__module__.startswith("rljob_operator"):
            left += list(vars(one).values()) if hasattr(one, "__dict__") else []
    return found
