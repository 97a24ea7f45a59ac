"""Pods and reports, which kopf does not watch: before a small server that says what a real one says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import kopf
import pytest
from aiohttp import web

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import ApiError, Object
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials
from rljob_operator.watch import reflector
from rljob_operator.watch.events import EventHandlers, Relist
from rljob_operator.watch.reflector import Reflector, Watches, lines
from simulator.patience import until

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
JOBS, PODS = "/apis/rljob.dev/v1alpha1/rljobs", "/api/v1/pods"


def pod(name: str, version: int, node: str = "n1") -> Object:
    meta = {"name": name, "namespace": "research", "uid": name, "resourceVersion": str(version)}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": []}}


def change(type_: str, obj: Object) -> Object:
    return {"type": type_, "object": obj}


class Server:
    """Lists `pods`, or after 410 `later`; answers each watch with the next of `watches`: a status code, or events. Then it is silent."""

    def __init__(self) -> None:
        self.pods: list[Object] = []
        self.later: list[Object] = []
        self.version = 10
        self.refused = 0
        """Lists that are still to be answered with 410."""
        self.watches: list[int | list[Object]] = []
        self.asked: list[str] = []
        """`list`, or the version from which a watch was asked for."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        if request.path == PODS:
            self.asked.append("list")
            if self.refused:
                self.refused -= 1
                return web.json_response(GONE["object"], status=410)
        items = self.pods if request.path == PODS else []
        return web.json_response(
            {"apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.query["resourceVersion"])
        events = self.watches.pop(0) if self.watches else None
        if isinstance(events, int):
            return web.json_response({"kind": "Status", "message": "injected"}, status=events)
        if GONE in (events or []):
            self.pods, self.version = self.later, 20
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events or []:
            await response.write(json.dumps(event).encode() + b"\n")
        if events is None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return response


class Case:
    def __init__(self, url: str, server: Server) -> None:
        credentials = Credentials(lambda: kopf.ConnectionInfo(server=url))
        self.server, self.cache = server, ClusterCache(lambda: 0.0)
        self.api, self.watches = KubernetesApi(credentials, RateLimiter(1000, 1000)), Watches(credentials)
        handlers = EventHandlers(self.cache, lambda job, after: None, 0)
        self.relist = Relist(self.api, self.cache, (), handlers.changed)
        self.reflector = Reflector(self.relist, self.watches, handlers.handle, ("Pod", None))

    def known(self) -> set[str]:
        return {name for name in ("a", "b", "c") if self.cache.usage.get(("research", name))}

    async def until(self, known: set[str], asked: list[str]) -> None:
        await until(lambda: (self.known(), self.server.asked) == (known, asked))


@asynccontextmanager
async def case(
    *watches: int | list[Object], pods: tuple[Object, ...] = (), later: tuple[Object, ...] = (), refused: int = 0
) -> AsyncIterator[Case]:
    server, app = Server(), web.Application()
    server.refused = refused
    server.watches, server.pods, server.later = list(watches), list(pods), list(later)
    app.router.add_get("/{path:.*}", lambda request: server.answer(request))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found = Case(f"http://127.0.0.1:{runner.addresses[0][1]}", server)
    running = asyncio.create_task(found.reflector.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.wait([running])
        await found.api.close()
        await found.watches.close()
        await runner.cleanup()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reflector, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(reflector, "LONGEST_PAUSE", 0.01)
    yield


async def test_a_watch_begins_where_the_list_ended_and_continues_where_the_last_one_did() -> None:
    events = [change("ADDED", pod("b", 11)), change("DELETED", pod("a", 12)), change("BOOKMARK", pod("", 15))]
    async with case(events, pods=(pod("a", 9),)) as found:
        await found.until({"b"}, ["list", "10", "15"])


async def test_after_410_a_new_list_says_what_vanished() -> None:
    async with case(
        [change("ADDED", pod("b", 11)), GONE], pods=(pod("a", 9), pod("c", 9)), later=(pod("c", 9),)
    ) as found:
        await found.until({"c"}, ["list", "10", "list", "20"])


async def test_lists_that_are_refused_as_too_old_are_made_with_a_pause_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is overloaded answers so to each page that comes too late; a list of all pods at once again would keep it there."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(reflector, "LONGEST_PAUSE", 15.0)
    monkeypatch.setattr(reflector.asyncio, "sleep", counted)
    async with case(pods=(pod("a", 9),), refused=4) as found:
        async with asyncio.timeout(60):
            while len(found.server.asked) < 6:
                await sleep(0.01)
        assert found.server.asked[:6] == ["list"] * 5 + ["10"]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]


@pytest.mark.parametrize("code", [401, 429, 500, 503])
async def test_a_watch_that_fails_is_begun_again_without_a_list(code: int) -> None:
    async with case(code, [change("ADDED", pod("b", 11))]) as found:
        await found.until({"b"}, ["list", "10", "10", "11"])


@pytest.mark.parametrize("code", [403, 404])
async def test_what_may_not_be_watched_is_listed_again_when_it_may(code: int) -> None:
    async with case(code, pods=(pod("a", 9),)) as found:
        await found.until({"a"}, ["list", "10", "list", "10"])


async def test_an_answer_that_is_no_json_is_an_error_of_the_api() -> None:
    """As a proxy's page of maintenance: lists and lease renewals are tried again, and the process continues."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>back soon</html>", content_type="text/html")

    async with case(pods=(pod("a", 9),)) as found:
        await found.until({"a"}, ["list", "10"])
        found.server.answer = page  # type: ignore[method-assign]
        with pytest.raises(ApiError, match="0: GET /api/v1/pods: the answer is not JSON: <html>back soon"):
            await found.api.listing("Pod", None)


@pytest.mark.parametrize("size", [7, 1000, 10**6])
async def test_lines_of_any_length_are_whole_however_they_arrive(size: int) -> None:
    text = b"short\n\n" + b"x" * 300_000 + b"\nlast\nunfinished"

    async def chunks() -> AsyncIterator[bytes]:
        for i in range(0, len(text), size):
            yield text[i : i + size]

    found: list[Any] = [line async for line in lines(chunks())]
    assert found == [b"short", b"x" * 300_000, b"last"]
