"""A driver that may draw ahead of the policy, what a server has got, and how old a batch is."""

import asyncio
from pathlib import Path

import pytest

from rljob_trainer.driver import main
from rljob_trainer.wire.batch import Batch
from trainer.driver.bench import SECONDS, Bench, Characters
from trainer.driver.servers import Server, Thinker


def ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench for four steps, one of which may be drawn ahead."""
    monkeypatch.setattr(main, "load_tokenizer", lambda spec: Characters())
    bench = Bench(directory)
    bench.spec["algorithm"] = {"rolloutCorrection": {"importanceSampling": "token"}}
    bench.spec["train"] |= {"steps": 4, "staleness": 1}
    return bench


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
