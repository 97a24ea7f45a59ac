"""PID 1 of a rollout pod, or of a pod of a pool: keeps one server running, tells it the current attempt, and reports.

Spec and current attempt come from the control object. A server that ends, or that health.py gives up, is restarted after a back-off, whatever its
exit code. On SIGTERM the server is stopped, and this process exits with 0.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api import names
from rljob_api.address import http_url
from rljob_api.protocol import Control, Failure, Report, RolloutEndpoint
from rljob_api.rules.lora import with_targets
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Source
from rljob_api.spec.roles import PoolSpec
from rljob_trainer.machine import loopback
from rljob_trainer.pod.arguments import pool_arguments, server_arguments, server_environment
from rljob_trainer.pod.server_process import ServerProcess
from rljob_trainer.sources.record import until_fetched
from rljob_trainer.wire.rollout_client import answers

if TYPE_CHECKING:
    from rljob_trainer.pod.channel import Channel

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
STABLE_SECONDS = 120.0
"""After a server has run for this long, the back-off starts anew."""
READY_POLL_SECONDS = 0.5
REPORT_SECONDS = 15.0

log = logging.getLogger(__name__)


async def main(channel: "Channel", environment: Mapping[str, str], port: int, role: str) -> int:
    """Run until SIGTERM. `environment`: names the pod and has the token (names.ENV_*); the server inherits it. `role`: of the pod."""
    supervisor = Supervisor(channel, environment, port, role)
    running = asyncio.create_task(supervisor.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return 0


class Supervisor:
    """Supervises one server; `run` runs until cancelled."""

    def __init__(
        self, channel: "Channel", environment: Mapping[str, str], port: int, role: str = names.ROLE_ROLLOUT
    ) -> None:
        self._channel, self._environment, self._port, self._role = channel, environment, port, role
        self._url = http_url(loopback(), port)
        self._boot_id = uuid.uuid4().hex
        self._control: Control | None = None
        self._failure: Failure | None = None
        self._ready = False
        self._controlled = asyncio.Event()
        self._restart = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._report())
            await self._controlled.wait()
            await self._keep_running()

    async def _follow(self) -> None:
        """Follow the operator's control messages."""
        async for control in self._channel.controls():
            if control is None or self._role not in control.spec.pods:
                continue  # the control object was deleted or is being recreated, or the pool was removed from the job
            before, self._control = self._control, control
            if before and self._arguments(before) != self._arguments(control):
                self._restart.set()
            if before is None or control.attempt != before.attempt:
                await self._announce()
                self._news.set()
            self._controlled.set()

    async def _keep_running(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            started = time.monotonic()
            await self._one_life()
            if time.monotonic() - started > STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            if not self._restart.is_set():
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _one_life(self) -> None:
        """Run one server from start to end. Its failure is recorded, unless it was ended on purpose."""
        assert self._control is not None
        await until_fetched(self._sources)
        self._restart.clear()
        spec = self._control.spec
        environment = server_environment(spec, spec.processes_of(self._role), self._environment)
        environment |= {names.ENV_ATTEMPT: str(self._control.attempt)}
        arguments = self._arguments(self._control)
        server = await ServerProcess.start(arguments, environment, self._url, spec.field_of(self._role))
        ended, restart = asyncio.create_task(server.end()), asyncio.create_task(self._restart.wait())
        becoming_ready = asyncio.create_task(self._become_ready(server))
        try:
            await asyncio.wait({ended, restart}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._failure = ended.result()
                log.warning("%s: %s", self._failure.exception, self._failure.message)
        finally:
            becoming_ready.cancel()
            restart.cancel()
            ended.cancel()
            await server.stop()
            self._ready = False
            self._news.set()
            _reap()

    async def _become_ready(self, server: ServerProcess) -> None:
        while True:
            if await self._announce():
                break
            await asyncio.sleep(READY_POLL_SECONDS)
        server.answered()
        self._ready, self._failure = True, None
        self._news.set()

    async def _announce(self) -> bool:
        """Tell the server the current attempt. Returns False when it does not answer."""
        assert self._control is not None
        here = RolloutEndpoint(pod="", pod_uid="", url=self._url)
        return await answers(here, self._environment[names.ENV_ROLLOUT_TOKEN], self._control.attempt)

    async def _report(self) -> None:
        """Report on every change, and at least every REPORT_SECONDS."""
        while True:
            self._news.clear()
            await self._channel.report(self._state())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), REPORT_SECONDS)

    def _state(self) -> Report:
        return Report(
            pod=self._environment[names.ENV_POD_NAME],
            pod_uid=self._environment[names.ENV_POD_UID],
            boot_id=self._boot_id,
            attempt=self._control.attempt if self._control else 0,
            state="running" if self._ready else "idle",
            failure=self._failure,
        )

    def _sources(self) -> Iterable[Source]:
        assert self._control is not None
        return self._control.spec.sources.values()

    def _arguments(self, control: Control) -> list[str]:
        settings = control.spec.pods[self._role]
        if isinstance(settings, PoolSpec):
            return pool_arguments(control.spec, settings, self._port)
        return server_arguments(with_targets_of_its_model(control.spec), self._port)


def with_targets_of_its_model(spec: RLJobSpec) -> RLJobSpec:
    """The spec with the LoRA targets that its model has. Unchanged if the model is missing, which the server will report."""
    file = Path(spec.model.path) / "config.json"
    return with_targets(spec, json.loads(file.read_text())) if spec.model.lora and file.is_file() else spec


def _reap() -> None:
    """As PID 1: reap orphans of a killed server. No child of our own is running now, so this takes no exit code from anybody."""
    with contextlib.suppress(ChildProcessError):
        while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
            pass
