"""Liveness that answers for real progress: the API server answered lately, and no job waits for a worker."""

import time
from collections.abc import Callable

from aiohttp import web

LIMIT = 180.0
"""Seconds."""


class HealthCheck:
    """When the API server answered last."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def heartbeat(self) -> None:
        self._last = time.monotonic()

    def problem(self, lag: float, deaf: float) -> str:
        """Empty when all is well. `lag`: see Queue.lag; `deaf`: seconds since the most silent watch showed anything, bookmarks included."""
        silence = time.monotonic() - self._last
        if silence > LIMIT:
            return f"the API server has not answered for {silence:.0f} s"
        if deaf > LIMIT:
            return f"a watch has been silent for {deaf:.0f} s"
        return f"a job has been waiting for {lag:.0f} s" if lag > LIMIT else ""


async def serve(port: int, problem: Callable[[], str], metrics: Callable[[], bytes]) -> web.AppRunner:
    """GET /healthz and /metrics on all addresses."""

    async def healthz(_: web.Request) -> web.Response:
        why = problem()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def prometheus(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", prometheus)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
