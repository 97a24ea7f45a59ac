"""A worker process in a pod of its own, over a connection that its pod opens to the driver (pod/worker.py): one for each process.

The pod begins with a message that shows the job's token (driver/pod_listener.py). From then on it relays: what the driver writes goes to the process
as it is, and each line of the process comes as its length (8 bytes, big-endian) and its bytes. A length of 0 says that the pod is there, and an empty
line that it leaves, whatever the process does.
"""

import asyncio
import contextlib
import logging

from rljob_trainer.wire.channel import LENGTH
from rljob_trainer.workers.process import LINE_LIMIT

BEAT_SECONDS = 5.0
"""Interval at which a pod says that it is there."""
SILENCE_SECONDS = 30.0
"""A pod that says nothing for so long is lost."""
BEAT = LENGTH.pack(0)
GOODBYE = b"\n"
"""The line that says that the pod leaves."""

log = logging.getLogger(__name__)


def framed(line: bytes) -> bytes:
    """A line as it is sent."""
    return LENGTH.pack(len(line)) + line


async def frame(reader: asyncio.StreamReader) -> bytes:
    """What was sent. Raises OSError, EOFError, and ValueError for more bytes than any line has, before memory is allocated for them."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > LINE_LIMIT:
        raise ValueError(f"a line of {length} bytes")
    return await reader.readexactly(length)


class Remote:
    """As process.Peer. The pod stops the process when the connection ends, and bounds its processes meanwhile."""

    def __init__(self, pod: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pod, self.taken = pod, False
        self._reader, self._writer = reader, writer

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.drain()

    @property
    def unread(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def line(self) -> bytes:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    line = await frame(self._reader)
                    if line:
                        break
            self.taken = line == GOODBYE
            return b"" if self.taken else line
        except TimeoutError:
            self.taken = True
            log.warning("%r has said nothing for %g s, and is given up", self.pod, SILENCE_SECONDS)
        except (OSError, EOFError, ValueError) as error:
            log.info("%r has closed its connection: %s", self.pod, error)
        return b""

    async def bound(self) -> None:
        """The pod does."""

    async def exit_code(self) -> None:
        """The pod reports it."""

    async def stop(self) -> None:
        self._writer.transport.abort()  # without waiting for a pod that does not read
