"""What a server has got, and how old a batch is."""

import asyncio

from rljob_trainer.wire.batch import Batch
from trainer.driver.bench import (
    SECONDS,
)
from trainer.driver.servers import Server, Thinker


def ages(found: Batch) -> set[int]:
    return {found.step - 1 - part.policy_step for s in found.samples for part in s.sampled_segments}


async def asked(server: Server, prompts: int) -> None:
    """The server has got requests for so many prompts."""
    async with asyncio.timeout(SECONDS):
        while len(server.requests) < prompts:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def answered(server: Thinker, requests: int) -> None:
    """So many requests have their whole answers."""
    async with asyncio.timeout(SECONDS):
        while server.answered < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)  # the driver reads the last one


async def probed(server: Server) -> None:
    """The driver knows that the server answers."""
    async with asyncio.timeout(SECONDS):
        while not server.probed:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)  # it reads the answer
