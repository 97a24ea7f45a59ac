"""Who runs a user's code: processes next to the driver, or in pods of their own, which come and go. A call goes to one that has room."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from rljob_trainer.machine import cpus
from rljob_trainer.workers.process import (
    MAX_PROCESSES,
    Respawning,
    WorkerGone,
    WorkerLost,
    WorkerProcess,
    WorkerTaken,
)
from rljob_trainer.workers.remote import Remote

MOST_REFUSALS = 2
"""Pods that could not load what they should run, before any has, after which none is waited for: one may be on a node whose volume is missing."""
REFUSAL_SECONDS = 120.0
"""After the first of them, until when another one may load it."""
TRIES = 3
"""Processes that may end under a call; in the last one it runs alone, so that it does not answer for others. One that ends every process in which it
runs would otherwise be run for ever."""
MOVES = 64
"""Processes that a call may lose in all. One that is taken away, as when its pod leaves, is no try; but a call may bring that about, by a signal to
its pod."""
log = logging.getLogger(__name__)


class Places[P]:
    """Whoever waits longest gets a place in the process of which the fewest are taken."""

    def __init__(self, room: Callable[[P], int], gone: Callable[[P], bool] = lambda _: False):
        """`room`: places of a process. `gone`: whether it can take nothing any more."""
        self._room, self._gone = room, gone
        self._taken: dict[P, int] = {}
        """Places by process. Who wants one alone takes all, on top of those that others still have."""
        self._waiting: deque[tuple[asyncio.Future[P], bool]] = deque()
        """With whether each wants to be alone."""
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Processes."""
        return len(self._taken)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._taken))

    def add(self, process: P) -> None:
        self._taken[process] = 0
        self._hand_out()

    def remove(self, process: P) -> None:
        del self._taken[process]
        self._wake()

    def fail(self, error: Exception) -> None:
        """Raise this in every `one` that waits now or later."""
        self._error = error
        self._hand_out()

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[P]:
        """A process with a place, once there is one. `alone`: once nothing else runs in it, and nothing else will until this has ended."""
        process = await self._given(alone)
        try:
            while alone and self._taken.get(process, 0) > self._wanted(process, alone):
                await self._changed.wait()
            yield process
        finally:
            self._release(process, alone)

    def _wanted(self, process: P, alone: bool) -> int:
        return self._room(process) if alone else 1

    async def _given(self, alone: bool) -> P:
        given: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._waiting.append((given, alone))
        self._hand_out()
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled() and not given.exception():
                self._release(given.result(), alone)
            raise

    def _release(self, process: P, alone: bool) -> None:
        if process in self._taken:
            self._taken[process] -= self._wanted(process, alone)
            self._wake()
            self._hand_out()

    def _wake(self) -> None:
        """Those who want to be alone look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _hand_out(self) -> None:
        while self._waiting:
            given, alone = self._waiting[0]
            if self._error and not given.done():
                given.set_exception(self._error)
            elif not given.done():
                process = min((p for p in self._taken if not self._gone(p)), key=self._taken.__getitem__, default=None)
                if process is None or self._taken[process] >= self._room(process):
                    return
                self._taken[process] += self._wanted(process, alone)
                given.set_result(process)
            self._waiting.popleft()


class NotLoaded(Exception):
    """No process could load what it should run."""


class Tries:
    """How often one call begins anew whose process was lost."""

    def __init__(self) -> None:
        self._ended = self._moved = 0

    @property
    def alone(self) -> bool:
        """Whether nothing else may run in the next process."""
        return self._ended == TRIES - 1

    def are_over(self, error: WorkerGone) -> bool:
        """Count a process that was lost. True: the call is to blame."""
        self._moved += 1
        self._ended += self._moved > MOVES or not isinstance(error, WorkerTaken)
        return self._ended == TRIES


class AnyWorkers[P: WorkerProcess](Protocol):
    """Call `start` before the first call and `stop` after the last."""

    @property
    def ready(self) -> bool:
        """Whether there is any process."""
        ...

    async def start(self) -> P:
        """A process that has loaded what it runs: all say the same of it. Raises NotLoaded."""
        ...

    def one(self, alone: bool = False) -> AbstractAsyncContextManager[P]:
        """A process that has room, once there is one; `alone`: one in which nothing else runs. It is ended when WorkerLost is raised inside. Raises
        NotLoaded and WorkerLost."""
        ...

    async def stop(self) -> None: ...


class OwnWorkers[P: WorkerProcess]:
    """Processes next to the driver. One that was lost is started again with the next call."""

    ready = True

    def __init__(self, start: Callable[[], Awaitable[P]], most: int | None = None):
        """`most`: calls at a time, over all processes; None: as many as these have room for."""
        count = min(cpus(), MAX_PROCESSES)
        self._each = max(1, most // count) if most else None
        self._workers = [Respawning(start) for _ in range(count)]

    async def start(self) -> P:
        started = await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True)
        for one in started:
            if isinstance(one, BaseException):
                raise NotLoaded(str(one)) from one
            process = one
        room = min(process.room, self._each or process.room)
        self._places = Places[Respawning[P]](lambda _: room)
        for worker in self._workers:
            self._places.add(worker)
        return process

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[P]:
        async with self._places.one(alone) as worker:
            process = await worker.running()
            try:
                yield process
            except WorkerLost:
                await worker.end(process)
                raise

    async def stop(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))


class PodWorkers[P: WorkerProcess]:
    """Processes in pods of their own, while these are connected. Must be created inside the event loop."""

    def __init__(self, kind: type[P], seconds: float, replicas: int):
        """`seconds`: that one call may take. `replicas`: pods when the attempt begins."""
        self._kind, self._seconds, self._most_refusals = kind, seconds, min(replicas, MOST_REFUSALS)
        self.changed: Callable[[], None] = lambda: None
        """Called when `ready` may be another."""
        self._places: Places[P] = Places(lambda process: process.room, lambda process: process.ended)
        """In each process that is connected."""
        self._loaded: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        """The first process that has loaded what it runs, or why none can. A pod in which one fails later reports that."""
        self._loaded.add_done_callback(lambda _: self._loaded.exception())  # also when nobody asks for it
        self._refusals: dict[str, WorkerLost] = {}
        """The first of each pod, until one has loaded it."""

    @property
    def ready(self) -> bool:
        return len(self._places) > 0

    async def start(self) -> P:
        return await asyncio.shield(self._loaded)

    @property
    def is_awaited(self) -> bool:
        """Any number may connect."""
        return True

    async def welcome(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give calls to a process until its connection ends."""
        try:
            process = await self._kind.greeted(Remote(pod, reader, writer), self._seconds)
        except WorkerLost as error:
            if not isinstance(error, WorkerGone):
                self._refuse(pod, error)
            return
        if not self._loaded.done():
            self._loaded.set_result(process)
        self._places.add(process)
        self.changed()
        await process.end()
        self._places.remove(process)
        log.info("a process of %r is gone", pod)
        await process.stop()
        self.changed()

    @asynccontextmanager
    async def one(self, alone: bool = False) -> AsyncIterator[P]:
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
        if not self._loaded.done():
            not_loaded = NotLoaded(str(next(iter(self._refusals.values()))))
            self._loaded.set_exception(not_loaded)
            self._places.fail(not_loaded)
