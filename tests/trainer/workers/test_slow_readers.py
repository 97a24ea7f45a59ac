"""What waits in the driver's memory for a process that does not read."""

import asyncio
import errno
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rljob_trainer.machine import loopback
from rljob_trainer.workers import process
from rljob_trainer.workers.process import WorkerGone, WorkerProcess, WorkerTaken
from rljob_trainer.workers.remote import Remote, framed
from trainer.pod.pods import SECONDS, until

CALLS = 64
ROW = b"x" * 2**20
HELLO = framed(json.dumps({"takes": [], "concurrent": True}).encode())


@asynccontextmanager
async def connected(seconds: float) -> AsyncIterator[tuple[WorkerProcess, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A process in a pod whose calls may take so long, with both ends of the pod's connection."""
    accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    server = await asyncio.start_server(lambda r, w: accepted.set_result((r, w)), loopback(), 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(HELLO)
    found = await WorkerProcess.greeted(Remote("pod", *await accepted), seconds)
    try:
        yield found, reader, writer
    finally:
        await found.stop()
        writer.close()
        server.close()


def unsent(worker: WorkerProcess) -> int:
    """Bytes that wait in this process."""
    assert isinstance(worker._peer, Remote)
    return worker._peer._writer.transport.get_write_buffer_size()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all messages that were made."""
    sizes, dumps = list[int](), pickle.dumps

    def measured(message: Any) -> bytes:
        data = dumps(message)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(process.pickle, "dumps", measured)
    return sizes


async def test_of_many_calls_of_a_process_that_reads_nothing_one_waits_in_memory_until_it_is_given_up(
    written: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.5)
    async with connected(0.5) as (worker, _, _):
        calls = [asyncio.create_task(worker.call({"row": ROW}, seconds=SECONDS)) for _ in range(CALLS)]
        while not any(call.done() for call in calls):
            assert unsent(worker) < 2 * len(ROW)
            assert len(written) < CALLS / 4, "what the kernel holds for the connection, and one"
            await asyncio.sleep(0.02)
        lost = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), SECONDS)
        assert {type(error) for error in lost} == {WorkerTaken} and worker.ended
    assert caplog.text.count("has read nothing for 1 s, and is given up") == 1


async def test_a_process_that_reads_slowly_gets_every_call_and_none_is_lost(written: list[int]) -> None:
    async with connected(SECONDS) as (worker, reader, writer):
        calls = [asyncio.create_task(worker.call({"row": ROW})) for _ in range(CALLS)]
        most = 0
        for _ in calls:
            await until(lambda: len(written) > 0)
            size = written.pop(0)
            number, values = pickle.loads(await reader.readexactly(size))
            assert values == {"row": ROW}
            writer.write(framed(json.dumps({"number": number}).encode()))
            most = max(most, unsent(worker))
        await asyncio.wait_for(asyncio.gather(*calls), SECONDS)
        assert most < 2 * len(ROW)


async def test_who_is_cancelled_while_it_waits_sends_nothing_and_keeps_nobody_from_sending(written: list[int]) -> None:
    async with connected(SECONDS) as (worker, reader, _):
        calls = [asyncio.create_task(worker.call({"row": ROW})) for _ in range(CALLS)]
        await until(lambda: len(written) > 0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        before = len(written)
        last = asyncio.create_task(worker.call({"row": b"last"}))
        for size in written[:before]:
            await reader.readexactly(size)
        await until(lambda: len(written) == before + 1)
        assert pickle.loads(await reader.readexactly(written[-1]))[1] == {"row": b"last"}
        last.cancel()


async def test_a_process_that_reads_a_large_message_slowly_is_not_given_up(
    written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer for it than a call may, and each call waits for the one before."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.1)
    async with connected(1.0) as (worker, reader, writer):
        calls = [asyncio.create_task(worker.call({"row": 24 * ROW}, seconds=SECONDS)) for _ in range(2)]
        for call in calls:
            await until(lambda: len(written) > 0)
            size, data = written.pop(0), b""
            while len(data) < size:
                read = await reader.read(min(2**18, size - len(data)))
                assert read, "it was given up"
                data += read
                await asyncio.sleep(0.02 if call is calls[0] else 0)
            number, _ = pickle.loads(data)
            writer.write(framed(json.dumps({"number": number}).encode()))
        await asyncio.wait_for(asyncio.gather(*calls), SECONDS)


async def test_a_connection_that_fails_while_a_call_waits_is_a_process_that_is_gone() -> None:
    """Whatever the network says."""
    async with connected(SECONDS) as (worker, _, _):
        first = asyncio.create_task(worker.call({"row": 8 * ROW}))
        second = asyncio.create_task(worker.call({"row": ROW}))
        await until(lambda: unsent(worker) > 0)
        assert isinstance(worker._peer, Remote)
        worker._peer._writer.transport._fatal_error(OSError(errno.EHOSTUNREACH, "no route to host"))  # type: ignore[attr-defined]
        lost = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), SECONDS)
        assert all(isinstance(error, WorkerGone) for error in lost), lost
