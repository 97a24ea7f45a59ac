"""Waiting for what comes, however busy the machine is."""

import asyncio
from collections.abc import Callable

SECONDS = 120
"""Many times what anything takes."""


async def until(ready: Callable[[], bool]) -> None:
    """However busy the machine is."""
    async with asyncio.timeout(SECONDS):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
