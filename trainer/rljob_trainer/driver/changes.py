"""Answers that wait for something to change."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

ANSWER_SECONDS = 1.0
"""A call that has to wait is answered after this time at the latest: meanwhile the other ranks wait in a broadcast, which has a time limit."""


class Changes:
    """What a call of rank 0 waits for. Whoever may have changed an answer calls `tell`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def answer(self, find: Callable[[], Any]) -> Any:
        """Call `find` whenever something changed, until its result is not empty; {} after ANSWER_SECONDS. Raises what `find` raises."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while not (answer := find()):
                    self._changed.clear()
                    await self._changed.wait()
                return answer
        return {}
