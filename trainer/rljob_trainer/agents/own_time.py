"""The clock of one trajectory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator


class OwnTime:
    """An agent's own time counts, its waiting for the policy does not. Used by tasks of one event loop."""

    def __init__(self, seconds: float):
        self._left, self._waiting = seconds, 0
        self._limit = asyncio.timeout(None)

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """The clock starts here: waiting for a process or a row of the data is not the agent's time. Raises TimeoutError once the time is used up,
        and cancels what is inside."""
        async with self._limit:
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
            yield

    @property
    def is_over(self) -> bool:
        return self._limit.expired()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still."""
        now = asyncio.get_running_loop().time
        with contextlib.suppress(RuntimeError):  # the trajectory has ended, or its time is over
            end = self._limit.when()
            if end is not None and not self._waiting:
                self._left = end - now()
                self._limit.reschedule(None)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            with contextlib.suppress(RuntimeError):
                if not self._waiting:
                    self._limit.reschedule(now() + self._left)
