"""PID 1 of a rollout pod, or of a pod of a pool: keeps one server running, tells it the current attempt, and reports.

Spec and current attempt come from the control object. A server that ends, or that health.py gives up, is restarted after a back-off, whatever its
exit code. On SIGTERM the server is stopped, and this process exits with 0.

Of a server of several pods, each runs its part (part.py) as long as the control lists it. A part that ended has a successor in the next generation
only: vLLM cannot replace one alone, so the operator has all parts start again.
"""

import asyncio
import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from rljob_api import names
from rljob_api.protocol import Control, Failure, Report, RolloutEndpoint
from rljob_api.rules.lora import with_targets
from rljob_api.server_group import ServerGroup
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Source
from rljob_api.spec.processes import Servers
from rljob_api.spec.roles import PoolSpec
from rljob_api.text import http_url
from rljob_trainer import failure
from rljob_trainer.machine import loopback
from rljob_trainer.pod.arguments import pool_arguments, server_arguments, server_environment
from rljob_trainer.pod.channel import Channel, ProtocolMismatch, keep_following, keep_reporting, until_terminated
from rljob_trainer.pod.part import PodPart
from rljob_trainer.pod.server_process import ServerProcess
from rljob_trainer.sources.record import until_fetched
from rljob_trainer.wire.rollout_client import answers

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
STABLE_SECONDS = 120.0
"""After a server has run for this long, the back-off starts anew."""
READY_POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


async def main(channel: Channel, environment: Mapping[str, str], port: int, role: str) -> int:
    """Run until SIGTERM. `environment`: names the pod and has the token (names.ENV_*); the server inherits it. `role`: of the pod."""
    supervisor = Supervisor(channel, environment, port, role)
    await until_terminated(supervisor.run())
    return 0


class Orders(NamedTuple):
    """What this pod has to run."""

    arguments: list[str]
    part: PodPart | None
    """None: the whole server."""


class Supervisor:
    """Supervises one server, or one part of one; `run` runs until cancelled."""

    def __init__(
        self, channel: Channel, environment: Mapping[str, str], port: int, role: str = names.ROLE_ROLLOUT
    ) -> None:
        self._channel, self._environment, self._port, self._role = channel, environment, port, role
        self._url = http_url(loopback(), port)
        self._boot_id = uuid.uuid4().hex
        self._control: Control | None = None
        self._refused: Failure | None = None
        """Why the newest control message cannot be read."""
        self._failure: Failure | None = None
        """Why the last server ended, or could not be started."""
        self._ready = False
        self._ended: ServerGroup | None = None
        """The generation in which this pod's part has ended."""
        self._controlled = asyncio.Event()
        self._restart = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_following(self._channel, self._hear, self._refuse))
            tasks.create_task(keep_reporting(self._channel, self._state, self._news))
            await self._controlled.wait()
            await self._keep_running()

    async def _hear(self, control: Control | None) -> None:
        self._refused = None
        if control is None or self._role not in control.spec.pods:
            return  # the control object was deleted or is being recreated, or the pool was removed from the job
        before, self._control = self._control, control
        if before and self._runs_another(before, control):
            self._restart.set()
        if before is None or control.attempt != before.attempt:
            await self._announce()
            self._news.set()
        self._controlled.set()

    def _runs_another(self, before: Control, control: Control) -> bool:
        """Whether this pod has something else to run. Where a file of the model cannot be read, the next life says so."""
        if (before.spec, self._part(before)) == (control.spec, self._part(control)):
            return False
        try:
            return self._orders(before) != self._orders(control)
        except (OSError, ValueError):
            return True

    def _refuse(self, mismatch: ProtocolMismatch) -> None:
        self._refused = failure.classify(mismatch)
        self._news.set()

    async def _keep_running(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            started = time.monotonic()
            try:
                await self._one_life()
            except Exception as error:  # a volume that is away, a model's file that cannot be read, a process that the kernel does not start
                log.exception("no server can be started")
                self._fail(error)
            if time.monotonic() - started > STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            if not self._restart.is_set():
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    def _fail(self, error: Exception) -> None:
        self._failure = failure.classify(error)
        self._news.set()

    async def _one_life(self) -> None:
        """Run one server from start to end. Its failure is recorded, unless it was ended on purpose."""
        assert self._control is not None
        await until_fetched(self._sources)
        orders = await self._next_orders()
        spec, part = self._control.spec, orders.part
        environment = server_environment(spec, self._settings(spec).gpus, self._environment, part)
        environment |= {names.ENV_ATTEMPT: str(self._control.attempt)}
        server = await ServerProcess.start(orders.arguments, environment, self._url, spec.field_of(self._role), part)
        ended, restart = asyncio.create_task(server.end()), asyncio.create_task(self._restart.wait())
        becoming_ready = asyncio.create_task(self._become_ready(server, part))
        try:
            await asyncio.wait({ended, restart}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._failure, self._ended = ended.result(), part.group if part else None
                log.warning("%s: %s", self._failure.exception, self._failure.message)
        finally:
            becoming_ready.cancel()
            restart.cancel()
            ended.cancel()
            await server.stop()
            self._ready = False
            self._news.set()
            _reap()

    async def _next_orders(self) -> Orders:
        """Returns once there are any. A part that has ended does not start again in the same generation."""
        while True:
            self._restart.clear()
            assert self._control is not None
            orders = self._orders(self._control)
            if orders and not (orders.part and orders.part.group == self._ended):
                return orders
            await self._restart.wait()

    async def _become_ready(self, server: ServerProcess, part: PodPart | None) -> None:
        if part and part.follows:
            await server.follows.wait()
        else:
            await self._answers()
        server.answered()
        self._ready, self._failure = True, None
        self._news.set()

    async def _answers(self) -> None:
        while True:
            if await self._announce():
                return
            await asyncio.sleep(READY_POLL_SECONDS)

    async def _announce(self) -> bool:
        """Tell the server the current attempt. Returns False when it does not answer."""
        assert self._control is not None
        here = RolloutEndpoint(pod="", pod_uid="", url=self._url)
        return await answers(here, self._environment[names.ENV_ROLLOUT_TOKEN], self._control.attempt)

    def _state(self) -> Report:
        return Report(
            pod=self._environment[names.ENV_POD_NAME],
            pod_uid=self._environment[names.ENV_POD_UID],
            boot_id=self._boot_id,
            attempt=self._control.attempt if self._control else 0,
            state="running" if self._ready else "idle",
            failure=self._refused or self._failure,
            failed_generation=self._ended.generation if self._ended else 0,
        )

    def _sources(self) -> Iterable[Source]:
        assert self._control is not None
        return self._control.spec.sources.values()

    def _orders(self, control: Control) -> Orders | None:
        """None: this pod's server has several, and the control does not list it."""
        settings, part = self._settings(control.spec), self._part(control)
        if settings.nodes > 1 and part is None:
            return None
        if isinstance(settings, PoolSpec):
            return Orders(pool_arguments(control.spec, settings, self._port, part), part)
        return Orders(server_arguments(with_targets_of_its_model(control.spec), self._port, part), part)

    def _part(self, control: Control) -> PodPart | None:
        return PodPart.of(control, self._boot_id)

    def _settings(self, spec: RLJobSpec) -> Servers:
        settings = spec.pods[self._role]
        assert isinstance(settings, Servers)
        return settings


def with_targets_of_its_model(spec: RLJobSpec) -> RLJobSpec:
    """The spec with the LoRA targets that its model has. Unchanged if the model is missing, which the server will report."""
    file = Path(spec.model.path) / "config.json"
    return with_targets(spec, json.loads(file.read_text())) if spec.model.lora and file.is_file() else spec


def _reap() -> None:
    """As PID 1: reap orphans of a killed server. No child of our own is running now, so this takes no exit code from anybody."""
    with contextlib.suppress(ChildProcessError):
        while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
            pass
