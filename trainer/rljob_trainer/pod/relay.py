"""Between one process of a worker pod and the driver: a connection, and what goes back and forth on it (workers/remote.py)."""

import asyncio
import socket
from collections.abc import Callable, Mapping

from rljob_api import names
from rljob_trainer.wire.channel import encode
from rljob_trainer.workers.process import LINE_LIMIT, LOOK_SECONDS, Child, WorkerLost, hello_of
from rljob_trainer.workers.remote import BEAT, BEAT_SECONDS, GOODBYE, SILENCE_SECONDS, frame, framed

PIECE = 2**16


async def connected(
    driver: tuple[str, int], role: str, attempt: int, environment: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the driver has accepted. `driver`: address and port. `role`: of the pod, which `environment` names, with the token
    (names.ENV_*). Raises OSError; EOFError when it was refused; ValueError."""
    reader, writer = await asyncio.open_connection(*driver)
    try:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE_SECONDS))
        token, pod = environment[names.ENV_ROLLOUT_TOKEN], environment[names.ENV_POD_NAME]
        writer.write(encode({"role": role, "attempt": attempt, "token": token, "pod": pod}))
        async with asyncio.timeout(SILENCE_SECONDS):
            await frame(reader)
    except BaseException:
        writer.close()
        raise
    return reader, writer


class Relay:
    """Between one process and the driver."""

    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, loaded: Callable[[], None]
    ) -> None:
        """`loaded` is called once the process has loaded what it runs."""
        self._child, self._reader, self._writer, self._loaded = child, reader, writer, loaded
        self._said = ""

    async def run(self) -> str | None:
        """Returns when one of them ends: None, the connection; empty, the process, without a word; else what is wrong with the process. When
        cancelled, it tells the driver that the pod leaves."""
        process = [asyncio.create_task(part) for part in (self._up(), self._bound())]
        connection = [asyncio.create_task(part) for part in (self._down(), self._beat())]
        try:
            done, _ = await asyncio.wait([*process, *connection], return_when=asyncio.FIRST_COMPLETED)
            ended = any(part in done and not part.exception() for part in process)
            return self._said if ended or self._said else None
        except asyncio.CancelledError:
            self._writer.write(framed(GOODBYE))
            raise
        finally:
            for part in (*process, *connection):
                part.cancel()
            await asyncio.gather(*process, *connection, return_exceptions=True)

    async def _up(self) -> None:
        """Returns when the process says nothing more. Raises ConnectionError."""
        line = await self._line()
        if line:
            try:
                hello_of(line)
                self._loaded()
            except WorkerLost as error:
                self._said = str(error)
        while line:
            self._writer.write(framed(line))
            await self._writer.drain()
            line = await self._line()

    async def _line(self) -> bytes:
        try:
            return await self._child.line()
        except ValueError:
            self._said = f"the process has said more than {LINE_LIMIT >> 20} MiB at once"
            return b""

    async def _bound(self) -> None:
        """Returns when the process has too many others."""
        while not self._said:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._child.bound()
            except WorkerLost as error:
                self._said = str(error)

    async def _down(self) -> None:
        while data := await self._reader.read(PIECE):
            self._child.write(data)
            await self._child.drain()

    async def _beat(self) -> None:
        while True:
            self._writer.write(BEAT)
            await self._writer.drain()
            await asyncio.sleep(BEAT_SECONDS)
