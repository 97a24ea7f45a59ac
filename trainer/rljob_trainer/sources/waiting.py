"""For those who do not fetch: until the files are there."""

import asyncio
from collections.abc import Callable, Iterable

from rljob_api.spec.common import Source
from rljob_trainer.sources.record import are_fetched

POLL_SECONDS = 1.0


async def until_fetched(sources: Callable[[], Iterable[Source]]) -> None:
    """`sources`: of the spec as it is at the moment. A volume that hangs holds up nobody but the caller."""
    while True:
        if await asyncio.to_thread(are_fetched, list(sources())):
            return
        await asyncio.sleep(POLL_SECONDS)
