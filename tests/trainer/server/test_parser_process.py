"""What a policy writes may keep a parser busy for hours, or end it. The server reads the next turn all the same."""

import asyncio
import os
import sys
from functools import partial

import psutil
import pytest

from rljob_trainer.server.parser_process import ParserProcess, TurnReader
from rljob_trainer.workers.process import WorkerLost

SECONDS = 60
"""Many times what anything takes."""


class Endless(ParserProcess):
    MODULE = "trainer.server.endless_parser"


class Missing(ParserProcess):
    MODULE = "trainer.server.no_such_parser"


def reader(limit: float) -> TurnReader:
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return TurnReader(partial(Endless.start, (), limit, paths))


@pytest.mark.parametrize(("text", "limit"), [("endless", 2.0), ("deadly", SECONDS)])
async def test_a_turn_that_keeps_or_ends_the_parser_stays_unread_and_the_next_is_read(text: str, limit: float) -> None:
    turns = reader(limit)
    try:
        first = (await turns.read({"text": "fine"}))["pid"]
        lost, *later = await asyncio.wait_for(
            asyncio.gather(turns.read({"text": text}), *(turns.read({"text": "fine"}) for _ in range(3))), SECONDS
        )
        assert lost["unread"].startswith("its parser: ")
        assert len({found["pid"] for found in later}) == 1 and later[0]["pid"] != first, "in a new process"
        assert not psutil.pid_exists(first), "it computes no longer"
    finally:
        await turns.stop()


async def test_a_turn_that_nobody_waits_for_any_more_does_not_delay_the_next() -> None:
    turns = reader(10_000.0)
    try:
        await turns.read({"text": "fine"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turns.read({"text": "endless"}), 0.1)
        assert (await asyncio.wait_for(turns.read({"text": "fine"}), SECONDS))["pid"] != os.getpid()
    finally:
        await turns.stop()


async def test_a_process_that_cannot_load_the_model_says_why() -> None:
    turns = TurnReader(partial(Missing.start, ("--",), SECONDS))
    with pytest.raises(WorkerLost, match="while it was imported"):
        await turns.read({"text": "fine"})
