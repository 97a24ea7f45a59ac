"""PID 1 of a worker pod: runs the processes of the job's agent for the attempt that is under way, and reports.

Each process has a connection of its own to the driver, which runs next to the trainer's rank 0 (agents/remote.py). Both begin and end together: a
process that ends, or a connection that does, has a successor, as long as the attempt runs. So a pod that comes back joins again, and whatever the
driver has given up ends here.
"""

import asyncio
import contextlib
import logging
import signal
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from rljob_api import names
from rljob_api.protocol import Control, Failure, Report
from rljob_trainer import failure
from rljob_trainer.agents.program import MAX_PROCESSES, MODULE, Program
from rljob_trainer.machine import cpus, memory_limit, oom_kills
from rljob_trainer.pod.relay import Relay, connected
from rljob_trainer.processes import adopt_orphans, reap
from rljob_trainer.rewards.worker_process import Child

if TYPE_CHECKING:
    from rljob_trainer.pod.channel import Channel

REPORT_SECONDS = 15.0
RETRY_SECONDS = 0.5
"""Between two tries to connect: a driver that starts does not listen yet."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 1.0, 60.0
"""Between two lives of a process that fails; doubled each time, until one has answered."""
REFUSALS = 20
"""In a row, after which they are reported: a driver that ends or begins refuses some."""
REFUSED = "the driver does not let this pod in: its token is not the trainer's; suspend and resume the job, and all pods get the same"
END_SECONDS = 5.0
"""Between the last word of a process and its end."""

log = logging.getLogger(__name__)


async def main(channel: "Channel", environment: Mapping[str, str], port: int) -> int:
    """Run until SIGTERM. `environment`: names the pod and has the token (names.ENV_*). `port`: where it says whether it is ready."""
    running = asyncio.create_task(WorkerPod(channel, environment, port).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return 0


class WorkerOrders(NamedTuple):
    """What this pod has to run."""

    attempt: int
    address: str
    """Of the driver."""
    port: int
    command: tuple[str, ...]
    """Arguments of each process."""
    variables: Mapping[str, str]
    processes: int

    @classmethod
    def of(cls, control: Control | None) -> "WorkerOrders | None":
        """None: no attempt runs, or the job has no workers any more. What else the spec says, such as how many pods there are, is no matter of this
        one."""
        if control is None or control.command == "stop" or not control.service_port:
            return None
        agent, trainer = control.spec.rollout.agent, control.gangs.get(names.ROLE_TRAINER)
        if agent is None or agent.workers is None or trainer is None:
            return None
        count = agent.workers.processes or min(cpus(), MAX_PROCESSES)
        command = Program.of(agent).command
        return cls(control.attempt, trainer.address, control.service_port, command, agent.env, count)


class WorkerPod:
    """`run` runs until cancelled."""

    def __init__(self, channel: "Channel", environment: Mapping[str, str], port: int) -> None:
        self._channel, self._environment, self._port = channel, environment, port
        self._boot_id = uuid.uuid4().hex
        self._orders: WorkerOrders | None = None
        self._lives: list[asyncio.Task[None]] = []
        """What keeps each process running."""
        self._children: set[int] = set()
        self._failure: Failure | None = None
        """Of the last process, unless one has answered since."""
        self._news = asyncio.Event()

    async def run(self) -> None:
        adopt_orphans()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_probes())
            tasks.create_task(self._report())
            try:
                async for control in self._channel.controls():
                    await self._obey(WorkerOrders.of(control), tasks)
            finally:
                await self._end()

    async def _obey(self, orders: WorkerOrders | None, tasks: asyncio.TaskGroup) -> None:
        if orders == self._orders:
            return
        await self._end()
        self._orders = orders
        self._news.set()
        if orders:
            self._lives = [tasks.create_task(self._keep_running(orders)) for _ in range(orders.processes)]

    async def _end(self) -> None:
        for life in self._lives:
            life.cancel()
        if self._lives:
            await asyncio.wait(self._lives)
        self._lives = []

    async def _keep_running(self, orders: WorkerOrders) -> None:
        backoff, refusals = FIRST_BACKOFF_SECONDS, 0
        while True:
            try:
                reader, writer = await connected((orders.address, orders.port), orders.attempt, self._environment)
            except (OSError, EOFError, ValueError) as error:
                refusals = refusals + 1 if isinstance(error, EOFError) else 0
                if refusals == REFUSALS:
                    self._failed(_why(REFUSED))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            refusals = 0
            try:
                found = await self._one_life(orders, reader, writer)
            finally:
                writer.close()
            if found is None:
                backoff = FIRST_BACKOFF_SECONDS
                continue
            log.warning("%s: %s", found.exception, found.message)
            self._failed(found)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _one_life(
        self, orders: WorkerOrders, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Failure | None:
        """Run one process until it ends or the connection does. Why it failed; None: it did not."""
        kills = oom_kills()
        child = await Child.start(MODULE, orders.command, orders.variables)
        self._children.add(child.pid)
        try:
            said = await Relay(child, reader, writer, lambda: self._failed(None)).run()
            if said is None:
                return None
            found = _why(said) if said else await _how_it_ended(child)
            return failure.with_memory(found, oom_kills() - kills, memory_limit())
        finally:
            await child.stop()
            self._children.discard(child.pid)

    def _failed(self, why: Failure | None) -> None:
        """None: a process has loaded the agent."""
        self._failure = why
        self._news.set()

    async def _answer_probes(self) -> None:
        """GET /health: 503 while the last process has failed."""

        async def health(_: web.Request) -> web.Response:
            return web.Response(status=503 if self._failure else 200)

        application = web.Application()
        application.add_routes([web.get("/health", health)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, self._port).start()  # on all addresses, IPv4 and IPv6
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _report(self) -> None:
        """Report on every change, and at least every REPORT_SECONDS; meanwhile collect orphans that ended."""
        while True:
            self._news.clear()
            await self._channel.report(self._state())
            reap(self._children)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), REPORT_SECONDS)

    def _state(self) -> Report:
        return Report(
            pod=self._environment[names.ENV_POD_NAME],
            pod_uid=self._environment[names.ENV_POD_UID],
            boot_id=self._boot_id,
            attempt=self._orders.attempt if self._orders else 0,
            state="idle" if self._failure else "running",
            failure=self._failure,
        )


def _why(said: str) -> Failure:
    return Failure(kind="application", exception="AgentFailed", message=said[: failure.LONGEST_TEXT], time=time.time())


async def _how_it_ended(child: Child) -> Failure:
    """Of a process that says nothing more."""
    try:
        return failure.ended(await asyncio.wait_for(child.wait(), END_SECONDS), None, "")
    except TimeoutError:
        return _why("the process has closed its end of the pipe")
