"""Who runs an agent: processes next to the driver, or in pods of their own, which come and go. A trajectory goes to one that has room."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from rljob_trainer.agents.places import Places
from rljob_trainer.agents.process import AT_ONCE, AgentProcess
from rljob_trainer.agents.program import MAX_PROCESSES
from rljob_trainer.agents.remote import Remote
from rljob_trainer.machine import cpus
from rljob_trainer.rewards.worker_process import Respawning, WorkerGone, WorkerLost

MOST_REFUSALS = 2
"""Pods that could not load the agent, before any has, after which none is waited for: one may be on a node whose volume is missing."""
REFUSAL_SECONDS = 120.0
"""After the first of them, until when another one may load it."""

log = logging.getLogger(__name__)


class NotLoaded(Exception):
    """No process could load the agent."""


class AgentProcesses(Protocol):
    """Call `start` before the first trajectory and `stop` after the last."""

    @property
    def ready(self) -> bool:
        """Whether there is any process."""
        ...

    async def start(self) -> dict[str, Any]:
        """What a process said of the agent that it has loaded. Raises NotLoaded."""
        ...

    def one(self, alone: bool = False) -> AbstractAsyncContextManager[AgentProcess]:
        """A process that has room, once there is one; `alone`: one in which nothing else runs. It is ended when WorkerLost is raised inside. Raises
        NotLoaded and WorkerLost."""
        ...

    async def stop(self) -> None: ...


class OwnWorkers:
    """Processes next to the driver. One that was lost is started again with the next trajectory."""

    ready = True

    def __init__(self, start: Callable[[], Awaitable[AgentProcess]]):
        self._workers = [Respawning(start) for _ in range(min(cpus(), MAX_PROCESSES))]
        self._places: Places[Respawning[AgentProcess]] = Places(AT_ONCE)

    async def start(self) -> dict[str, Any]:
        for found in await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True):
            if not isinstance(found, AgentProcess):
                raise NotLoaded(str(found)) from found
        for worker in self._workers:
            self._places.add(worker)
        return (await self._workers[0].running()).hello

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[AgentProcess]:
        async with self._places.one(alone) as worker:
            process = await worker.running()
            try:
                yield process
            except WorkerLost:
                await worker.end(process)
                raise

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))


class PodWorkers:
    """Processes in pods of their own, while these are connected. Must be created inside the event loop."""

    def __init__(self, seconds: float, replicas: int):
        """`seconds`: of its own that the agent may take for one trajectory. `replicas`: pods when the attempt begins."""
        self._seconds, self._most_refusals = seconds, min(replicas, MOST_REFUSALS)
        self.changed: Callable[[], None] = lambda: None
        """Called when `ready` may be another."""
        self._places: Places[AgentProcess] = Places(AT_ONCE, lambda process: process.ended)
        """In each process that is connected."""
        self._hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """Of the first process that has loaded the agent, or why none can. A pod in which one fails later reports that."""
        self._hello.add_done_callback(lambda _: self._hello.exception())  # also when nobody asks for it
        self._refusals: dict[str, WorkerLost] = {}
        """The first of each pod, until one has loaded it."""

    @property
    def ready(self) -> bool:
        return len(self._places) > 0

    async def start(self) -> dict[str, Any]:
        return await asyncio.shield(self._hello)

    @property
    def is_awaited(self) -> bool:
        """Any number may connect."""
        return True

    async def welcome(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give trajectories to a process until its connection ends."""
        try:
            process = await AgentProcess.greeted(Remote(pod, reader, writer), self._seconds)
        except WorkerLost as error:
            if not isinstance(error, WorkerGone):
                self._refuse(pod, error)
            return
        if not self._hello.done():
            self._hello.set_result(process.hello)
        self._places.add(process)
        self.changed()
        await process.end()
        self._places.remove(process)
        log.info("a process of %r is gone", pod)
        await process.stop()
        self.changed()

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[AgentProcess]:
        async with self._places.one(alone) as process:
            try:
                yield process
            except WorkerLost:
                await process.stop()
                raise

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self._places))

    def _refuse(self, pod: str, error: WorkerLost) -> None:
        self._refusals.setdefault(pod, error)
        if len(self._refusals) >= self._most_refusals:
            self._give_up()
        elif len(self._refusals) == 1:
            asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Unless one has loaded it meanwhile."""
        if not self._hello.done():
            found = NotLoaded(str(next(iter(self._refusals.values()))))
            self._hello.set_exception(found)
            self._places.fail(found)
