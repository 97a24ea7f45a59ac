"""The gateway's process: serve clients and the driver, which asks for work and brings results (wire/gateway.py), until SIGTERM; and write its
report, as all pods of a job write one."""

import asyncio
import hmac
import logging
import os
import signal
import time
import uuid
from pathlib import Path

from aiohttp import web

from rljob_api import names
from rljob_api.protocol import Control, Report, RolloutEndpoint, ServiceReport
from rljob_trainer.collection import exempt_from_collection
from rljob_trainer.gateway.clients import Keys
from rljob_trainer.gateway.desk import Desk
from rljob_trainer.gateway.files import GatewaySuperseded
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.gateway.samples import Samples
from rljob_trainer.gateway.servers import SamplingServers
from rljob_trainer.gateway.service import GatewayService
from rljob_trainer.gateway.wire.routes import Routes
from rljob_trainer.machine import raise_open_files
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.gateway import DONE, DRAINING, DRIVER, JOB, NEXT, NEXT_SECONDS, SUPERSEDED, TICKET
from rljob_trainer.wire.launcher_files import follow_control, report_file
from rljob_trainer.wire.weights.protocol import ATTEMPT_HEADER, AttemptFence, AttemptSuperseded

LARGEST_RESULT = 2**31
"""Bytes of a result."""
REPORT_SECONDS = 0.5
SWEEP_SECONDS = 5.0
CONTROL_SECONDS = 0.2
"""Interval at which the control message is looked for."""
GOODBYE_SECONDS = 1.0
"""For requests under way when the gateway ends; long polls are cut."""
IDLE_SECONDS = 300.0
"""For which a connection without a request stays open: it costs some 20 KiB, and clients open thousands and may vanish. The SDK ends its own after
three minutes at most (measured), and most proxies after one, so that they seldom send a request over one that closes just then."""
DIRECTORY = "service"
"""Below spec.checkpoint.path."""
log = logging.getLogger(__name__)


class WorkRoutes:
    """An application of aiohttp for one job. `/health` answers anybody: the kubelet."""

    def __init__(self, desk: Desk, servers: SamplingServers, job_uid: str, token: str) -> None:
        self._desk, self._servers, self._job, self._bearer = desk, servers, job_uid, f"Bearer {token}".encode()
        self._fence = AttemptFence()
        self.app = web.Application(client_max_size=LARGEST_RESULT)
        self.app.router.add_post(NEXT, self._next)
        self.app.router.add_post(DONE, self._done)
        self.app.router.add_get("/health", self._health)

    async def _next(self, request: web.Request) -> web.Response:
        attempt = self._admitted(request)
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
        attempt = int(request.headers[ATTEMPT_HEADER])
        try:
            self._fence.admit(attempt)
        except AttemptSuperseded as fenced:
            raise web.HTTPConflict(text=str(fenced)) from None
        return attempt


def service_report(service: GatewayService, samples: Samples, now: float) -> ServiceReport:
    """`now`: by the monotonic clock."""
    tally, limit = service.desk.tally, service.spec.idle_seconds
    waiting = samples.waiting + sum(book.line.waiting for book in service.books.values())
    return ServiceReport(
        clients=len(service.names.sessions),
        models=sum(not book.line.failed for book in service.books.values()),
        waiting=waiting,
        idle=limit is not None and not waiting and now - tally.active >= limit,
        attempt=tally.attempt,
        answered=tally.answered,
        trained_tokens=tally.trained_tokens,
        sampled_tokens=tally.sampled_tokens,
        mismatches=service.desk.mismatches,
    )


async def keep_reporting(channel: Path, service: GatewayService, samples: Samples) -> None:
    """Write every change of the report into the channel's directory, until cancelled."""
    pod, boot, written = os.environ[names.ENV_POD_NAME], uuid.uuid4().hex, None
    while True:
        said = service_report(service, samples, time.monotonic())
        if said != written:
            written = said
            report = Report(pod=pod, pod_uid=os.environ[names.ENV_POD_UID], boot_id=boot, state="running", service=said)
            replace(report_file(channel, pod), report.dump_json())
        await asyncio.sleep(REPORT_SECONDS)


async def run(channel: Path, token: str, address: str | None, port: int, work_port: int) -> int:
    """Serve clients at `port` and the driver at `work_port` until SIGTERM. The exit code: 0, or SUPERSEDED. `channel`: the directory with the control
    message; `address`: None: all, IPv4 and IPv6."""
    control = await _control(channel / names.CONTROL_KEY)
    spec = control.spec
    try:
        service = await asyncio.to_thread(_opened, control)
    except GatewaySuperseded as superseded:
        log.error("%s", superseded)
        return SUPERSEDED
    raise_open_files()
    exempt_from_collection()
    policies = None if spec.adapters else ServedPolicies(spec.model.path, service.desk.changed)
    service.desk.policies = policies
    servers = SamplingServers(token, policies)
    samples = Samples(servers.sample, service.clock, service.desk.tally.sampled)
    keys = Keys(Path(spec.service.keys) if spec.service.keys else None)
    clients = Routes(service, samples, keys, spec.service.name or spec.model.path).app
    driver = WorkRoutes(service.desk, servers, control.job_uid, token).app
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    runners = [await _serve(clients, address, port), await _serve(driver, address, work_port)]
    log.info("serving at port %d", port)
    reporting, following = keep_reporting(channel, service, samples), _follow(channel, service, servers)
    parts = (_sweep(service, samples), reporting, following, ended.wait())
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except GatewaySuperseded as superseded:
        log.error("%s", superseded)
        return SUPERSEDED
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*(runner.cleanup() for runner in runners))
        await samples.close()
    await asyncio.to_thread(service.claim.release)
    return 0


def _opened(control: Control) -> GatewayService:
    spec, job = control.spec, "" if control.local else control.job_uid
    return GatewayService(spec.service, Path(spec.checkpoint.path) / DIRECTORY, job, control.gateway_number)


async def _control(file: Path) -> Control:
    text = read_text(file)
    while not text:  # another process writes it
        await asyncio.sleep(CONTROL_SECONDS)
        text = read_text(file)
    return Control.model_validate_json(text)


async def _follow(channel: Path, service: GatewayService, servers: SamplingServers) -> None:
    """No driver says so when it is gone, and its servers with it."""
    async for control in follow_control(channel):
        runs = control.command == "run"
        service.away = "" if runs else f"RLJob {control.name} has no trainers now: it is suspended, queues or restarts"
        if not control.rollouts:
            servers.follow(control.attempt, ())


async def _serve(app: web.Application, address: str | None, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=GOODBYE_SECONDS, keepalive_timeout=IDLE_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    return runner


async def _sweep(service: GatewayService, samples: Samples) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        try:
            await asyncio.to_thread(service.claim.check)
            await service.sweep()
        except OSError as error:
            log.warning("the volume: %s", error)
        samples.sweep()
