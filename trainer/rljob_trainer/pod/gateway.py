"""PID 1 of the gateway's pod: keeps the gateway's process running while the operator names this pod as the gateway, hands it the control message, and
reports what clients have. To the process all this is as on one machine: a directory with control.json, and its own report in it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from rljob_api import names
from rljob_api.protocol import Control, Failure, Report, ServiceReport
from rljob_api.spec.service import ServiceSpec
from rljob_api.text import http_url
from rljob_trainer import failure
from rljob_trainer.output import ChildOutput, pipe
from rljob_trainer.pod.channel import Channel, ProtocolMismatch, keep_following, keep_reporting, until_terminated
from rljob_trainer.processes import adopt_orphans, reap, tied
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.gateway import SUPERSEDED
from rljob_trainer.wire.launcher_files import report_file

LOOK_SECONDS = 0.5
"""Between two looks at what the process says."""
GOODBYE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.5, 10.0

log = logging.getLogger(__name__)


async def main(channel: Channel, environment: Mapping[str, str], port: int, work_port: int) -> int:
    """Run until SIGTERM. `environment`: names the pod, its address and its working directory, and has the token (names.ENV_*)."""
    await until_terminated(GatewayPod(channel, environment, port, work_port).run())
    return 0


@dataclass(frozen=True)
class GatewayOrders:
    """What a process is started for: with other ones it is started again."""

    service: ServiceSpec
    model: str
    directory: str
    """spec.checkpoint.path."""
    number: int
    """Of this pod's naming as the gateway."""

    @staticmethod
    def of(control: Control | None, url: str) -> "GatewayOrders | None":
        """None: another pod is the gateway, or none. `url`: of this one."""
        if control is None or control.gateway != url:
            return None
        spec = control.spec
        service = spec.service.model_copy(update={"template": type(spec.service.template)()})
        return GatewayOrders(service, spec.model.path, spec.checkpoint.path, control.gateway_number)


class GatewayPod:
    """`run` runs until cancelled."""

    def __init__(self, channel: Channel, environment: Mapping[str, str], port: int, work_port: int) -> None:
        self._channel, self._environment = channel, environment
        self._url = http_url(environment[names.ENV_POD_IP], work_port)
        self._directory = Path(environment.get(names.ENV_WORK, names.WORK_DIR)) / names.ROLE_GATEWAY
        options = ("--channel", str(self._directory), "--everywhere")
        ports = ("--port", str(port), "--work-port", str(work_port))
        self._command = tied("rljob_trainer", "gateway", *options, *ports)
        self._boot_id = uuid.uuid4().hex
        self._orders: GatewayOrders | None = None
        self._life: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._failure: Failure | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        adopt_orphans()
        self._directory.mkdir(parents=True, exist_ok=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_reporting(self._channel, self._state, self._news, self._collect_orphans))
            tasks.create_task(self._look())
            try:
                await keep_following(self._channel, partial(self._act, tasks), self._refuse)
            finally:
                await self._end()

    async def _act(self, tasks: asyncio.TaskGroup, control: Control | None) -> None:
        if control is None:
            return
        replace(self._directory / names.CONTROL_KEY, control.dump_json())
        orders = GatewayOrders.of(control, self._url)
        if orders == self._orders:
            return
        await self._end()
        self._orders = orders
        self._life = tasks.create_task(self._keep_running()) if orders else None

    async def _end(self) -> None:
        if self._life:
            self._life.cancel()
            await asyncio.wait({self._life})
        self._life = None
        self._report_file.unlink(missing_ok=True)
        self._news.set()

    async def _keep_running(self) -> None:
        pause = FIRST_BACKOFF_SECONDS
        while True:
            process, output = await self._start()
            try:
                code = await process.wait()
            finally:
                await _ended(process)
            await output.close()
            pause = FIRST_BACKOFF_SECONDS if self._said else min(2 * pause, LONGEST_BACKOFF_SECONDS)
            self._report_file.unlink(missing_ok=True)
            self._fail(_superseded() if code == SUPERSEDED else failure.ended(code, None, output.text))
            await asyncio.sleep(pause)

    async def _start(self) -> tuple[Process, ChildOutput]:
        reader, end = await pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, env=dict(self._environment), stdout=end, stderr=end
            )
        finally:
            os.close(end)
        return self._process, ChildOutput(reader, sys.stdout.buffer)

    def _refuse(self, mismatch: ProtocolMismatch) -> None:
        self._fail(failure.classify(mismatch))

    def _fail(self, why: Failure) -> None:
        log.warning("the gateway's process: %s", why.message or why.exception)
        self._failure = why
        self._news.set()

    async def _look(self) -> None:
        """Report at once when clients begin to wait, or stop to ask."""
        before: tuple[bool, ...] | None = None
        while True:
            said = self._said
            now = (said.idle, said.waiting > 0) if said else None
            if now != before:
                before, self._failure = now, None if said else self._failure
                self._news.set()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def _report_file(self) -> Path:
        return report_file(self._directory, self._environment[names.ENV_POD_NAME])

    @property
    def _said(self) -> ServiceReport | None:
        """What the process says; None: it does not serve yet."""
        text = read_text(self._report_file)
        with contextlib.suppress(ValidationError):
            return Report.model_validate_json(text).service if text else None
        return None

    def _collect_orphans(self) -> None:
        reap({self._process.pid} if self._process else set())

    def _state(self) -> Report:
        said = self._said
        return Report(
            pod=self._environment[names.ENV_POD_NAME],
            pod_uid=self._environment[names.ENV_POD_UID],
            boot_id=self._boot_id,
            state="running" if said else "idle",
            failure=None if said else self._failure,
            service=said,
        )


def _superseded() -> Failure:
    """The log of the process says who has claimed what. It is tried again: the operator names one pod at a time, whose claim wins in the end."""
    message = "another gateway has claimed the directory service of spec.checkpoint.path: the log of this pod says which one, and what to do"
    return Failure(kind="application", exception=f"exit code {SUPERSEDED}", message=message, time=time.time())


async def _ended(process: Process) -> None:
    """SIGTERM, if it runs; returns when it does not."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
