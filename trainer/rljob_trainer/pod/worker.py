"""PID 1 of a worker pod: runs processes of an agent or of a reward function for the attempt that is under way, and reports.

Each process has a connection of its own to the driver, which runs next to the trainer's rank 0 (workers/remote.py). Both begin and end together: a
process that ends, or a connection that does, has a successor, as long as the attempt runs. So a pod that comes back joins again, and whatever the
driver has given up ends here.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from functools import partial

from aiohttp import web

from rljob_api import names
from rljob_api.protocol import Control, Failure, Report
from rljob_trainer import failure
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.pod.channel import Channel, ProtocolMismatch, keep_following, keep_reporting, until_terminated
from rljob_trainer.pod.worker_life import WorkerLife, WorkerOrders
from rljob_trainer.processes import adopt_orphans, reap

log = logging.getLogger(__name__)


async def main(channel: Channel, environment: Mapping[str, str], role: str, port: int) -> int:
    """Run until SIGTERM. `environment`: names the pod and has the token (names.ENV_*). `port`: where it says whether it is ready."""
    await until_terminated(WorkerPod(channel, environment, role, port).run())
    return 0


class WorkerPod:
    """`run` runs until cancelled."""

    def __init__(self, channel: Channel, environment: Mapping[str, str], role: str, port: int) -> None:
        self._channel, self._environment, self._role, self._port = channel, environment, role, port
        self._boot_id = uuid.uuid4().hex
        self._orders: WorkerOrders | None = None
        self._lives: dict[WorkerLife, asyncio.Task[None]] = {}
        self._mismatch: Failure | None = None
        """The operator speaks another protocol."""
        self._news = asyncio.Event()

    @property
    def pids(self) -> set[int]:
        """Of the processes that run."""
        return {life.pid for life in self._lives if life.pid is not None}

    async def run(self) -> None:
        adopt_orphans()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_probes())
            tasks.create_task(keep_reporting(self._channel, self._state, self._news, self._collect_orphans))
            try:
                await keep_following(self._channel, partial(self._act, tasks), self._refuse)
            finally:
                await self._end()

    def _refuse(self, mismatch: ProtocolMismatch) -> None:
        self._mismatch = failure.classify(_of_these_pods(mismatch, self._role))
        self._news.set()

    async def _act(self, tasks: asyncio.TaskGroup, control: Control | None) -> None:
        self._mismatch, orders = None, WorkerOrders.of(control, self._role)
        if orders == self._orders:
            return
        await self._end()
        self._orders = orders
        self._news.set()
        lives = (
            [WorkerLife(orders, self._environment, self._news.set) for _ in range(orders.processes)] if orders else []
        )
        self._lives = {life: tasks.create_task(life.run()) for life in lives}

    async def _end(self) -> None:
        for life in self._lives.values():
            life.cancel()
        if self._lives:
            await asyncio.wait(self._lives.values())
        self._lives = {}

    @property
    def _is_ready(self) -> bool:
        return any(life.has_loaded for life in self._lives)

    async def _answer_probes(self) -> None:
        """GET /health: 503 while no process has loaded what it should run."""

        async def health(_: web.Request) -> web.Response:
            return web.Response(status=200 if self._is_ready else 503)

        application = web.Application()
        application.add_routes([web.get("/health", health)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, self._port).start()  # on all addresses, IPv4 and IPv6
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def _collect_orphans(self) -> None:
        reap(self.pids)

    def _state(self) -> Report:
        failures = [life.failure for life in self._lives if life.failure]
        return Report(
            pod=self._environment[names.ENV_POD_NAME],
            pod_uid=self._environment[names.ENV_POD_UID],
            boot_id=self._boot_id,
            attempt=self._orders.attempt if self._orders else 0,
            state="running" if self._is_ready else "idle",
            failure=self._mismatch or max(failures, key=lambda f: f.time, default=None),
        )


def _of_these_pods(mismatch: ProtocolMismatch, role: str) -> ConfigurationError:
    """Their image may be another than the job's."""
    rule = f"the image speaks protocol {names.PROTOCOL} of the control, the operator protocol {mismatch.theirs}"
    fix = "use one whose package rljob_trainer is of the operator's release; unset, these pods run spec.image"
    section = "rollout.agent" if role == names.ROLE_WORKER else f"rewards[{names.scorer_index(role)}]"
    return ConfigurationError(f"spec.{section}.workers.template.image", "", rule, fix)
