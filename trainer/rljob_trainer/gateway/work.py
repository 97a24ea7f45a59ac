"""The gateway's port for the driver, which asks for work and brings results (wire/gateway.py)."""

import hmac

from aiohttp import web

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway.desk import Desk
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.wire.gateway import DONE, DRAINING, DRIVER, JOB, NEXT, NEXT_SECONDS, TICKET
from rljob_trainer.wire.weights.protocol import ATTEMPT_HEADER, AttemptFence, AttemptSuperseded

LARGEST = 2**31
"""Bytes of a result."""


class WorkRoutes:
    """An application of aiohttp for one job. `/health` answers anybody: the kubelet."""

    def __init__(self, desk: Desk, servers: SamplingServers, job_uid: str, token: str) -> None:
        self._desk, self._servers, self._job, self._bearer = desk, servers, job_uid, f"Bearer {token}".encode()
        self._fence = AttemptFence()
        self.app = web.Application(client_max_size=LARGEST)
        self.app.router.add_post(NEXT, self._next)
        self.app.router.add_post(DONE, self._done)
        self.app.router.add_get("/health", self._health)

    async def _next(self, request: web.Request) -> web.Response:
        self._desk.tally.attempt = attempt = self._admitted(request)
        said = await request.json()
        self._servers.follow(attempt, [RolloutEndpoint.model_validate(e) for e in said["rollouts"]])
        draining = DRAINING in request.query
        piece = await self._desk.next(request.headers[DRIVER], draining, NEXT_SECONDS, attempt, said["failed"])
        if piece is None:
            return web.Response(status=204)
        return web.Response(body=piece.work, headers={TICKET: piece.ticket}, content_type="application/octet-stream")

    async def _done(self, request: web.Request) -> web.Response:
        self._admitted(request)
        await self._desk.done(request.headers[TICKET], await request.read())
        return web.Response(status=204)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    def _admitted(self, request: web.Request) -> int:
        """The attempt of a driver that may ask."""
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), self._bearer):
            raise web.HTTPUnauthorized(text="the job's token is required")
        if request.headers[JOB] != self._job:
            raise web.HTTPConflict(text="this gateway serves another job")
        try:
            self._fence.admit(attempt := int(request.headers[ATTEMPT_HEADER]))
        except AttemptSuperseded as fenced:
            raise web.HTTPConflict(text=str(fenced)) from None
        return attempt
