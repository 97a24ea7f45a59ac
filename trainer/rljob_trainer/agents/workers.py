"""Who runs an agent: processes next to the driver, or in pods of their own, which come and go. A trajectory goes to one that has room."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from rljob_trainer.agents.process import AT_ONCE, AgentProcess
from rljob_trainer.agents.program import MAX_PROCESSES
from rljob_trainer.agents.remote import Remote
from rljob_trainer.machine import cpus
from rljob_trainer.rewards.worker_process import Respawning, WorkerGone, WorkerLost

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

    def one(self) -> AbstractAsyncContextManager[AgentProcess]:
        """A process that has room, once there is one. It is ended when WorkerLost is raised inside. Raises NotLoaded and WorkerLost."""
        ...

    async def stop(self) -> None: ...


class OwnWorkers:
    """Processes next to the driver. One that was lost is started again with the next trajectory."""

    ready = True

    def __init__(self, start: Callable[[], Awaitable[AgentProcess]]):
        self._workers = [Respawning(start) for _ in range(min(cpus(), MAX_PROCESSES))]
        self._free: asyncio.Queue[Respawning[AgentProcess]] = asyncio.Queue()
        """Each process as often as it can take a trajectory."""

    async def start(self) -> dict[str, Any]:
        for found in await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True):
            if not isinstance(found, AgentProcess):
                raise NotLoaded(str(found)) from found
        for _ in range(AT_ONCE):
            for worker in self._workers:
                self._free.put_nowait(worker)
        return (await self._workers[0].running()).hello

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AgentProcess]:
        worker = await self._free.get()
        try:
            process = await worker.running()
            try:
                yield process
            except WorkerLost:
                await worker.end(process)
                raise
        finally:
            self._free.put_nowait(worker)

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))


class PodWorkers:
    """Processes in pods of their own, while these are connected. Must be created inside the event loop."""

    def __init__(self, seconds: float):
        """`seconds`: of its own that the agent may take for one trajectory."""
        self._seconds = seconds
        self.changed: Callable[[], None] = lambda: None
        """Called when `ready` may be another."""
        self._load: dict[AgentProcess, int] = {}
        """Trajectories of each process that is connected."""
        self._waiting: deque[asyncio.Future[AgentProcess]] = deque()
        self._hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """Of the first process, or why it could not load the agent. The pods of later ones report that."""
        self._hello.add_done_callback(lambda _: self._hello.exception())  # also when nobody asks for it

    @property
    def ready(self) -> bool:
        return bool(self._load)

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
                self._refuse(error)
            return
        if not self._hello.done():
            self._hello.set_result(process.hello)
        self._load[process] = 0
        self._hand_out()
        self.changed()
        await process.end()
        log.info("a process of %r is gone, with %d trajectories", pod, self._load.pop(process))
        await process.stop()
        self.changed()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AgentProcess]:
        process = await self._least_loaded()
        try:
            yield process
        except WorkerLost:
            await process.stop()
            raise
        finally:
            self._release(process)

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in list(self._load)))

    def _refuse(self, error: WorkerLost) -> None:
        if not self._hello.done():
            self._hello.set_exception(NotLoaded(str(error)))
            self._hand_out()

    async def _least_loaded(self) -> AgentProcess:
        given: asyncio.Future[AgentProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        self._hand_out()
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._release(given.result())
            raise

    def _release(self, process: AgentProcess) -> None:
        if process in self._load:
            self._load[process] -= 1
            self._hand_out()

    def _hand_out(self) -> None:
        """Give those who wait longest the processes that have least to do."""
        while self._waiting:
            given = self._waiting[0]
            if self._hello.done() and (error := self._hello.exception()) and not given.done():
                given.set_exception(error)
            elif not given.done():
                process = min((p for p in self._load if not p.ended), key=self._load.__getitem__, default=None)
                if process is None or self._load[process] >= AT_ONCE:
                    return
                self._load[process] += 1
                given.set_result(process)
            self._waiting.popleft()
