"""What a child process writes: passed on to our own output, and its end kept, from which a failure says why the process ended."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from rljob_api.callbacks import nothing

KEPT_BYTES = 2**18
"""Enough for the tracebacks of all workers, the engine and the API server of vLLM."""
READ_BYTES = 2**16
DRAIN_SECONDS = 5.0
"""Longest wait for the end of the output of a process that has ended, which one that has left its session may hold open."""


async def pipe() -> tuple[asyncio.StreamReader, int]:
    """Our end, and the file descriptor of the child's, to be closed once it has been started. It is not asyncio's own pipe, with which waiting for a
    process also waits for all children that have inherited the pipe."""
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        partial(asyncio.StreamReaderProtocol, reader), os.fdopen(ours, "rb")
    )
    return reader, theirs


class ChildOutput:
    """Reads our end of a pipe until all have closed theirs."""

    def __init__(
        self, reader: asyncio.StreamReader, to: BinaryIO, heard: Callable[[bytes], None] | None = None
    ) -> None:
        """`to`: where it is passed on. `heard` is called with each piece."""
        self._to, self._heard = to, heard or nothing
        self._kept = bytearray()
        self._passing_on = asyncio.create_task(self._pass_on(reader))

    @property
    def text(self) -> str:
        """The end of it."""
        return self._kept.decode(errors="replace")

    def ends_with(self, text: bytes, within: int) -> bool:
        """Whether the text is in it and ends in its last `within` bytes."""
        return text in self._kept[-within - len(text) :]

    async def close(self) -> None:
        """Once the process has ended: returns when all of it has been read."""
        await asyncio.wait({self._passing_on}, timeout=DRAIN_SECONDS)
        self._passing_on.cancel()

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(READ_BYTES):
            self._to.write(chunk)
            self._to.flush()
            self._kept += chunk
            del self._kept[:-KEPT_BYTES]
            self._heard(chunk)
