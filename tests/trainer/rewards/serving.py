"""A web server on loopback for tests of rewards."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from aiohttp import web


class Answering:
    """A server that a test writes the answers of. Use as a context."""

    paths: Sequence[str]
    url: str

    async def __aenter__(self) -> Self:
        self._served = served(self.paths, self.respond)
        self.url = await self._served.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._served.__aexit__(*error)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


@asynccontextmanager
async def served(
    paths: Sequence[str], answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[str]:
    """Its address while it answers POSTs to these paths."""
    app = web.Application()
    app.add_routes([web.post(path, answer) for path in paths])
    async with running(app) as address:
        yield address


@asynccontextmanager
async def running(app: web.Application) -> AsyncIterator[str]:
    """Its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
