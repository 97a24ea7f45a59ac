"""Where tasks wait while nothing may be generated."""

import asyncio

Place = tuple[int, int]
"""Position of the prompt in the data, number of the sample: what began earlier has the lower one."""


class Pause:
    """Begins closed. Opened, it lets tasks pass in the order of their places, so that what began first gets the servers' room first: a step may have
    to wait for it."""

    def __init__(self) -> None:
        self._open = False
        self._waiting: list[tuple[Place, asyncio.Future[None]]] = []

    def open(self) -> None:
        self._open = True
        waiting, self._waiting = sorted(self._waiting, key=lambda waiter: waiter[0]), []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        self._open = False

    async def over(self, place: Place) -> None:
        """Returns while it is open."""
        while not self._open:  # it may be closed again before a waiting task has run
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((place, future))
            await future
