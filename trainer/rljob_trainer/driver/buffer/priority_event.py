"""An event that wakes the tasks that wait for it in the order of their priorities."""

import asyncio
from collections import deque

AT_ONCE = 16
"""Tasks that are woken in a turn of the event loop."""
Priority = tuple[int, int]
"""Position of the prompt in the data, number of the sample in its group: what began earlier has the lower one, and goes first."""


class PriorityEvent:
    """Like asyncio.Event, which wakes its waiters in the order in which they came. It begins cleared.

    Samples that began first get the free slots of the servers first, because a step may have to wait for them. Many are not woken all in one turn of
    the event loop, in which nobody else would be served.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[tuple[Priority, asyncio.Future[None]]] = []

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = sorted(self._waiting, key=lambda waiter: waiter[0]), []
        _wake(deque(future for _, future in waiting))

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, priority: Priority) -> None:
        """Returns while the event is set."""
        while not self._is_set:  # it may be cleared again before a waiting task has run
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((priority, future))
            await future


def _wake(waiting: deque[asyncio.Future[None]]) -> None:
    for _ in range(min(AT_ONCE, len(waiting))):
        if not (future := waiting.popleft()).done():
            future.set_result(None)
    if waiting:
        asyncio.get_running_loop().call_soon(_wake, waiting)
