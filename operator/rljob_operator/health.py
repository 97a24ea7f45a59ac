"""/healthz, the liveness probe: it fails when the operator does not ask for its lease any more, or when a job has waited too long for a worker."""

import time
from collections.abc import Callable

from aiohttp import web

LIMIT = 180.0
"""Seconds without a request for the lease, or of a job's wait, after which the process should be restarted."""


class HealthCheck:
    """An API server that does not answer is no reason to restart this process, so a request for the lease counts whatever its result."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def heartbeat(self) -> None:
        """The lease has just been asked for."""
        self._last = time.monotonic()

    def problem(self, lag: float) -> str:
        """Why the process should be restarted; empty: it is healthy. `lag`: see WorkQueue.lag."""
        silence = time.monotonic() - self._last
        if silence > LIMIT:
            return f"the lease has not been asked for for {silence:.0f} s"
        return f"a job has been waiting for {lag:.0f} s" if lag > LIMIT else ""


async def serve(port: int, problem: Callable[[], str], metrics: Callable[[], bytes]) -> web.AppRunner:
    """Serves /healthz and /metrics on all addresses."""

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
