"""The driver's end of the channel: one connection, rank 0's, requests answered in order."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rljob_trainer.driver.channel import LENGTH, write
from rljob_trainer.failure import PeerLost

Call = Callable[..., Awaitable[Any]]


class RankLost(PeerLost):
    """Rank 0 ended without saying goodbye; its own error file says why."""


async def serve(listener: socket.socket, calls: Mapping[str, Call], heartbeat: Callable[[int], None]) -> None:
    """Answer rank 0 until it has called `end`. Raises RankLost, and whatever a call raises."""
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
        asyncio.get_running_loop().create_future()
    )

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set_result((reader, writer))

    server = await asyncio.start_unix_server(accept, sock=listener)
    try:
        reader, writer = await connected
        with contextlib.closing(writer):
            await _answer(reader, writer, calls, heartbeat)
    finally:
        server.close()


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    calls: Mapping[str, Call],
    heartbeat: Callable[[int], None],
) -> None:
    while True:
        request = await _read(reader)
        name = request.pop("call")
        if name == "heartbeat":
            heartbeat(request["count"])
            continue
        answer = await calls[name](**request)
        try:
            await write(writer, answer)
        except ConnectionError:
            raise RankLost("rank 0 is gone") from None
        if name == "end":
            return


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return json.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise RankLost("rank 0 is gone") from None
