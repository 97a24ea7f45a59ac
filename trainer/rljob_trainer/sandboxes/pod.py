"""A sandbox in a pod: a claim is a connection to its helper (helper.c), and ends with it, whoever hangs up."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

from rljob_trainer.sandboxes.frames import EMPTY, fields_of, frame
from rljob_trainer.sandboxes.http import asked
from rljob_trainer.sandboxes.sandbox import MOST_BYTES, EndedProgram, SandboxError

CONNECT_SECONDS = 10.0
BEAT_SECONDS = 5.0
"""Interval at which the helper hears that the claim holds."""
GRACE_SECONDS = 15.0
"""Beyond the time of a request: an answer that takes longer never comes."""
REASONS: dict[bytes, Literal["", "timeout", "output"]] = {b"": "", b"timeout": "timeout", b"output": "output"}
LOST = "the sandbox has ended, for lack of memory perhaps, or its node has"


class PodSandbox:
    """As sandbox.ClaimedSandbox."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._host, self._reader, self._writer = host, reader, writer
        self._one_by_one, self._lost = asyncio.Lock(), False
        self._beating = asyncio.create_task(self._beat())

    @classmethod
    async def claimed(cls, address: str, token: str) -> "PodSandbox":
        """`address`: host and port, as in a URL. Raises SandboxError: somebody else has it, or it does not answer."""
        writer, (host, _, port) = None, address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
                writer.write(len(token).to_bytes(4, "big") + token.encode())
                if await fields_of(reader) != [b"ok"]:
                    raise ValueError("it does not say ok")
        except (OSError, EOFError, ValueError) as error:  # a TimeoutError is an OSError
            if writer:
                writer.transport.abort()
            raise SandboxError(
                f"the sandbox at {address} cannot be claimed: {type(error).__name__}: {error}"
            ) from error
        return cls(host, reader, writer)

    async def run(self, command: Sequence[str], seconds: float, stdin: bytes, most: int) -> EndedProgram:
        words = [word.encode(errors="surrogateescape") for word in command]
        limits = [str(round(1000 * seconds)).encode(), str(most).encode()]
        code, reason, output, errors = await self._answer(seconds, b"run", *limits, stdin, *words)
        return EndedProgram(int(code), REASONS[reason], output, errors)

    async def write(self, path: str, content: bytes) -> None:
        await self._answer(0, b"write", path.encode(), content)

    async def read(self, path: str) -> bytes:
        (content,) = await self._answer(0, b"read", path.encode(), str(MOST_BYTES).encode())
        return content

    async def http(
        self, method: str, port: int, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        if self._lost:
            raise SandboxError(LOST)
        return await asked(self._host, method, port, path, body, headers, seconds)

    async def close(self) -> None:
        self._lost = True
        self._writer.transport.abort()
        self._beating.cancel()
        await asyncio.wait([self._beating])

    async def _answer(self, seconds: float, *fields: bytes) -> list[bytes]:
        async with self._one_by_one:
            if self._lost:
                raise SandboxError(LOST)
            try:
                async with asyncio.timeout(seconds + GRACE_SECONDS):
                    self._writer.write(frame(fields))
                    await self._writer.drain()
                    kind, *found = await fields_of(self._reader)
            except BaseException as error:  # a cancelled request's answer would be taken for the next one's
                self._lost = True
                self._writer.transport.abort()
                if isinstance(error, OSError | EOFError | ValueError):
                    raise SandboxError(LOST) from error
                raise
        if kind == b"error" and len(found) == 1:
            raise SandboxError(found[0].decode(errors="replace"))
        return found

    async def _beat(self) -> None:
        with suppress(OSError):
            while not self._writer.is_closing():
                self._writer.write(EMPTY)
                await asyncio.sleep(BEAT_SECONDS)
