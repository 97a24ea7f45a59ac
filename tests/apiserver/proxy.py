"""What stands between the operator and the API server, and is not always kind."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

import aiohttp
from aiohttp import web

from e2e.control_plane import TOKEN, unverified
from rljob_operator.kube.watches import lines

GONE = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}\n'
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(kw_only=True)
class Faults:
    """Probabilities per request, seconds, and what happens after each write. The lease is spared: losing it ends an operator by design."""

    refused: dict[int, float] | None = None
    """Status codes with which a request is answered and not forwarded."""
    lost: float = 0.0
    """A write is done and answered with 500."""
    delay: float = 0.0
    watch_seconds: float | None = None
    """Watches are cut after so long."""
    gone: bool = False
    """A watch that is cut has ended with 410: what follows its last version is forgotten."""
    doubled: bool = False
    """Every event of a watch comes twice."""
    away: bool = False
    """Nobody answers, also not for the lease."""
    token: str = ""
    """If given, whoever shows another one is answered with 401."""
    after_write: Callable[[str], None] = lambda line: None
    """Called when a write is done, before its answer is sent."""
    watches: int = 0
    """That were begun."""
    writing: int = 0
    """Writes that are under way."""


@asynccontextmanager
async def proxy(target: str, faults: Faults, random: Random) -> AsyncIterator[str]:
    """The address of a server that forwards to `target`."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=unverified(), limit=0)) as session:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", Forwarder(session, target, faults, random).handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@dataclass
class Forwarder:
    session: aiohttp.ClientSession
    target: str
    faults: Faults
    random: Random

    async def handle(self, request: web.Request) -> web.StreamResponse:
        writes = request.method in WRITES
        self.faults.writing += writes
        try:
            return await self._answer(request)
        finally:
            self.faults.writing -= writes

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.faults.away and request.transport:
            request.transport.abort()
        if self.faults.token and request.headers.get("Authorization") != f"Bearer {self.faults.token}":
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        spared = "/leases" in request.path
        if not spared:
            await asyncio.sleep(self.faults.delay)
            for status, probability in (self.faults.refused or {}).items():
                if (status != 409 or request.method in WRITES) and self.random.random() < probability:
                    return web.json_response({"kind": "Status", "code": status, "message": "injected"}, status=status)
        headers = {k: v for k, v in request.headers.items() if k in ("Authorization", "Content-Type", "Accept")}
        headers |= {"Authorization": f"Bearer {TOKEN}"} if self.faults.token else {}
        body = await request.read()
        url = self.target + request.raw_path
        async with self.session.request(request.method, url, headers=headers, data=body or None) as answer:
            if "watch" in request.query:
                return await self._stream(request, answer)
            text = await answer.read()
        if request.method in WRITES and answer.status < 400 and not spared:
            self.faults.after_write(f"{request.method} {request.path}")
            if self.random.random() < self.faults.lost:
                return web.json_response({"kind": "Status", "code": 500, "message": "lost"}, status=500)
        return web.Response(body=text, status=answer.status, content_type="application/json")

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        self.faults.watches += 1
        response = web.StreamResponse(status=answer.status)
        with suppress(ConnectionError):
            await response.prepare(request)
            try:
                async with asyncio.timeout(self.faults.watch_seconds):
                    async for line in lines(answer.content.iter_any()):
                        await response.write((line + b"\n") * (2 if self.faults.doubled else 1))
            except TimeoutError:
                await response.write(GONE if self.faults.gone else b"")
        return response
