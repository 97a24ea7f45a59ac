"""Who runs a user's code: processes next to the driver, or in pods of their own, which come and go. A call goes to one that has room."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from rljob_api.callbacks import nothing
from rljob_api.protocol import WorkerLoad
from rljob_api.spec.processes import Autoscaling, Workers
from rljob_trainer.machine import cpus
from rljob_trainer.workers.load import PodsNeeded
from rljob_trainer.workers.places import PackedPlaces, Places, ordinal
from rljob_trainer.workers.process import (
    WorkerGone,
    WorkerLost,
    WorkerProcess,
    WorkerRefused,
    WorkerTaken,
    processes_on,
)
from rljob_trainer.workers.remote import Remote
from rljob_trainer.workers.respawning import Respawning

TRIES = 3
"""Processes that may end under a call; in the last one it runs alone, so that it does not answer for others. One that ends every process in which it
runs would otherwise be run for ever."""
MOVES = 64
"""Processes that a call may lose in all. One that is taken away, as when its pod leaves, is no try; but a call may bring that about, by a signal to
its pod."""
log = logging.getLogger(__name__)


class NotLoaded(Exception):
    """No process could load what it should run. `details`: what one says of that besides the text, by name."""

    def __init__(self, reason: str, details: Mapping[str, Any]):
        super().__init__(reason)
        self.details = details


class LoadingLost(Exception):
    """A process was killed while it loaded what it should run, for example because memory ran out: it may be tried again."""

    def __init__(self, field: str, target: str, reason: WorkerGone):
        """`field`: of the spec, which names `target`."""
        super().__init__(f"{field} = {target}: {reason}")
        self.field, self.target, self.reason = field, target, str(reason)


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
        """A process that has loaded what it runs: all say the same of it. Raises NotLoaded, and WorkerGone where one was killed meanwhile."""
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
        count = processes_on(cpus())
        self._each = max(1, most // count) if most else None
        self._workers = [Respawning(start) for _ in range(count)]

    async def start(self) -> P:
        started = await asyncio.gather(*(w.running() for w in self._workers), return_exceptions=True)
        for one in started:
            if isinstance(one, WorkerGone):
                raise one
            if isinstance(one, BaseException):
                raise NotLoaded(str(one), _details(one)) from one
            process = one
        room = min(process.room, self._each or process.room)

        def room_of(_: Respawning[P]) -> int:
            return room

        self._places = Places[Respawning[P]](room_of)
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


def _room(process: WorkerProcess) -> int:
    return process.room


def _has_ended(process: WorkerProcess) -> bool:
    return process.ended


class PodWorkers[P: WorkerProcess]:
    """Processes in pods of their own, while these are connected. Must be created inside the event loop."""

    def __init__(self, kind: type[P], seconds: float, workers: Workers):
        """`seconds`: that one call may take."""
        self._kind, self._seconds, self._expected = kind, seconds, workers.fewest
        """Of pods whose number follows their calls, there are no more than the fewest before one has loaded what it runs."""
        self.changed: Callable[[], None] = nothing
        """Called when `ready` may be another."""
        self._pods = dict[P, str]()
        """Of the processes that are connected."""
        self._places, self._needed = self._placed(workers.autoscaling)
        self._loaded: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        """The first process that has loaded what it runs, or why none can. A pod in which one fails later reports that."""
        self._loaded.add_done_callback(lambda _: self._loaded.exception())  # also when nobody asks for it
        self._refusals: dict[str, WorkerLost] = {}
        """Why a pod cannot load it, as it has said first."""

    def _ordinal(self, process: P) -> int:
        return ordinal(self._pods[process])

    def _placed(self, autoscaling: Autoscaling | None) -> tuple[Places[P], PodsNeeded[P] | None]:
        """Places in each process that is connected, and how many pods they need where that decides."""
        if autoscaling is None:
            return Places(_room, _has_ended), None
        packed = PackedPlaces(_room, _has_ended, self._ordinal, autoscaling)
        return packed, PodsNeeded(packed, autoscaling)

    @property
    def load(self) -> WorkerLoad | None:
        """What the number of pods follows; None: it is fixed."""
        return self._needed.now() if self._needed else None

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
        self._pods[process] = pod
        self._places.add(process)
        self.changed()
        await process.end()
        self._places.remove(process)
        del self._pods[process]
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
        """A pod cannot load what it should run. Most pods decide, unless one has loaded it, and not the first: its
        node may lack a volume, or have an old image, and others may still pull theirs."""
        if pod in self._refusals:
            return
        self._refusals[pod] = error
        log.warning("%r cannot load what it should run: %s", pod, error)
        if 2 * len(self._refusals) > self._expected and not self._loaded.done():
            ((said, count),) = Counter(map(str, self._refusals.values())).most_common(1)
            details = next(_details(one) for one in self._refusals.values() if str(one) == said)
            refused = f"so say {count} of {len(self._refusals)} pods that cannot, of {self._expected}"
            not_loaded = NotLoaded(f"{said} ({refused})", details)
            self._loaded.set_exception(not_loaded)
            self._places.fail(not_loaded)


def _details(error: BaseException) -> Mapping[str, Any]:
    return error.details if isinstance(error, WorkerRefused) else {}
