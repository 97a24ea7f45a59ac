"""Places for calls in processes that come and go."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager


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
