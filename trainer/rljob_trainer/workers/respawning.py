"""A process that is made again when it has ended."""

import asyncio
from collections.abc import Awaitable, Callable

from rljob_trainer.workers.process import WorkerProcess


class Respawning[P: WorkerProcess]:
    """A process that `start` makes, and another one when it has ended."""

    def __init__(self, start: Callable[[], Awaitable[P]]):
        self._start = start
        self._process: P | None = None
        self._changing = asyncio.Lock()

    async def running(self) -> P:
        """The process, a new one where there is none. Raises WorkerLost."""
        async with self._changing:
            if self._process is None or self._process.ended:
                await self._stopped()
                self._process = await self._start()
            return self._process

    async def end(self, process: P) -> None:
        """Unless another has taken its place already."""
        async with self._changing:
            if self._process is process:
                await self._stopped()

    async def stop(self) -> None:
        async with self._changing:
            await self._stopped()

    async def _stopped(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
