"""The socket alone."""

import asyncio

import numpy as np
import pytest

from rljob_trainer.driver.server import RankLost, serve
from rljob_trainer.rank.driver_client import DriverClient, DriverLost
from rljob_trainer.wire.arrays import raw
from rljob_trainer.wire.channel import Arrays, listen

SECONDS = 120
"""Many times what anything takes."""


async def ask(method, *arguments):
    return await asyncio.wait_for(asyncio.to_thread(method, *arguments), SECONDS)


async def test_large_messages_arrays_heartbeats_and_deep_directories(tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    listener = listen(deep / "driver.sock")
    rank = DriverClient.connect(deep / "driver.sock", deep / "error", 0)
    heartbeats = []

    async def following() -> dict:
        return {"batch": "x" * 2_000_000}

    async def part(rows: list[int]) -> Arrays:
        return Arrays({"tokens": 3_000_000}, [np.arange(row, 3000 + row, dtype=np.int32) for row in range(1000)])

    async def end(export: str) -> None:
        pass

    notices = {"heartbeat": lambda count: heartbeats.append(count), "awaiting": lambda what: heartbeats.append(what)}
    served = asyncio.create_task(serve(listener, {"next": following, "part": part, "end": end}, notices))
    rank.heartbeat()
    rank.awaiting("demo-rollout-0 to receive weights")
    assert len((await ask(rank.next))["batch"]) == 2_000_000
    found = np.empty((await ask(rank.part, []))["tokens"], np.int32)
    await ask(rank.read_into, raw(found))
    assert (found.reshape(1000, 3000) == np.arange(1000)[:, None] + np.arange(3000)).all()
    await ask(rank.end, "")
    await asyncio.wait_for(served, SECONDS)
    assert heartbeats == [1, "demo-rollout-0 to receive weights"]


async def test_a_rank_that_leaves_without_a_word_is_noticed(tmp_path):
    listener = listen(tmp_path / "driver.sock")
    rank = DriverClient.connect(tmp_path / "driver.sock", tmp_path / "error", 0)
    rank._socket.close()
    rank._reader.close()
    with pytest.raises(RankLost):
        await asyncio.wait_for(serve(listener, {}, {}), SECONDS)


def test_a_driver_that_failed_is_not_waited_for(tmp_path):
    (tmp_path / "error-driver.json").write_text("{}")
    with pytest.raises(DriverLost, match="did not start"):
        DriverClient.connect(tmp_path / "driver.sock", tmp_path / "error-driver.json", 60)
