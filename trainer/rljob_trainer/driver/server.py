"""The driver's end of the channel: answers the calls of a rank 0 in order, some of them once something has changed."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from rljob_trainer.failure import PeerLost
from rljob_trainer.wire.arrays import allocated, raw
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.calls import Handler, Notice
from rljob_trainer.wire.channel import BUFFER_BYTES, LENGTH, write

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
                answer = find()
                while not answer:
                    self._changed.clear()
                    await self._changed.wait()
                    answer = find()
                return answer
        return {}


class RankLost(PeerLost):
    """Rank 0 ended without calling `end`; its own error file says why."""


async def serve(listener: socket.socket, calls: Mapping[str, Handler], notices: Mapping[str, Notice]) -> None:
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
            await answer(reader, writer, calls, notices)
    finally:
        server.close()


async def answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    calls: Mapping[str, Handler],
    notices: Mapping[str, Notice],
    silence: float | None = None,
) -> None:
    """Answer a rank until it has called `end`. Raises RankLost, and whatever a call raises.

    `notices`: what it says without an answer. `silence`: seconds without any message after which the rank is lost; None: no limit, for a rank whose
    end closes the connection.
    """
    while True:
        request = await _bounded(reader, silence)
        name = request.pop("call")
        notice = notices.get(name)
        if notice:
            notice(**request)
            continue
        reply = await calls[name](**request)
        try:
            await write(writer, reply)
        except ConnectionError:
            raise RankLost("rank 0 is gone") from None
        if name == "end":
            return


async def _bounded(reader: asyncio.StreamReader, seconds: float | None) -> dict[str, Any]:
    try:
        async with asyncio.timeout(seconds):
            return await read(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        raise RankLost("rank 0 is gone") from None
    except TimeoutError:
        raise RankLost(f"rank 0 has said nothing for {seconds:g} s") from None


async def read(reader: asyncio.StreamReader, most: int | None = None) -> dict[str, Any]:
    """The next message, with the arrays behind it under `arrays`.

    `most` is for a peer that has not shown the token yet: a message of more bytes, or one that announces arrays, raises ValueError before
    memory is allocated for it.
    """
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if most is not None and length > most:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(await reader.readexactly(length))
    if "arrays" not in message:
        return message
    if most is not None:
        raise ValueError("arrays from a peer that is not authenticated")
    return message | {"arrays": await _arrays(reader, message["arrays"])}


async def _arrays(reader: asyncio.StreamReader, described: list[list[Any]]) -> dict[str, Array]:
    arrays = allocated(described)
    for array in arrays.values():
        block = raw(array)
        for start in range(0, len(block), BUFFER_BYTES):
            piece = block[start : start + BUFFER_BYTES]
            piece[:] = await reader.readexactly(len(piece))
    return arrays
