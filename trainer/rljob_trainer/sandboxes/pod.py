"""A sandbox in a pod: a claim is a connection to its helper (helper.c), and ends with it, whoever hangs up."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from rljob_trainer.sandboxes.helper import EMPTY, fields_of, frame
from rljob_trainer.sandboxes.http import asked
from rljob_trainer.sandboxes.sandbox import MOST_BYTES, EndedProgram, SandboxError

CONNECT_SECONDS = 10.0
BEAT_SECONDS = 5.0
"""Interval at which the helper hears that the claim holds."""
GRACE_SECONDS = 15.0
"""Beyond the time of a request: an answer that takes longer never comes."""
REASONS: dict[bytes, Literal["", "timeout", "output"]] = {b"": "", b"timeout": "timeout", b"output": "output"}
WRONG = (OSError, EOFError, ValueError, TypeError, KeyError)
"""What a connection and an answer that is none raise. A TimeoutError is an OSError."""
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
        except BaseException as error:
            if writer:
                writer.transport.abort()
            if not isinstance(error, WRONG):
                raise
            raise SandboxError(
                f"the sandbox at {address} cannot be claimed: {type(error).__name__}: {error}"
            ) from error
        return cls(host, reader, writer)

    async def run(self, command: Sequence[str], seconds: float, stdin: bytes, most: int) -> EndedProgram:
        limits = [str(round(1000 * seconds)).encode(), str(most).encode()]
        return await self._answer(seconds, _ended, b"run", *limits, stdin, *map(_encoded, command))

    async def write(self, path: str, content: bytes) -> None:
        await self._answer(0, _nothing, b"write", _encoded(path), content)

    async def read(self, path: str) -> bytes:
        return await self._answer(0, _content, b"read", _encoded(path), str(MOST_BYTES).encode())

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

    async def _answer[T](self, seconds: float, parse: Callable[..., T], *fields: bytes) -> T:
        """`parse`: of the fields of the answer, after its kind."""
        async with self._one_by_one:
            if self._lost:
                raise SandboxError(LOST)
            try:
                async with asyncio.timeout(seconds + GRACE_SECONDS):
                    self._writer.write(frame(fields))
                    await self._writer.drain()
                    kind, *values = await fields_of(self._reader)
                    if kind != b"error":
                        return parse(*values)
                    (refusal,) = values
            except BaseException as error:  # a cancelled request's answer would be taken for the next one's
                self._lost = True
                self._writer.transport.abort()
                if isinstance(error, WRONG):
                    raise SandboxError(LOST) from error
                raise
        raise SandboxError(refusal.decode(errors="replace"))

    async def _beat(self) -> None:
        with suppress(OSError):
            while not self._writer.is_closing():
                self._writer.write(EMPTY)
                await asyncio.sleep(BEAT_SECONDS)


def _encoded(word: str) -> bytes:
    return word.encode(errors="surrogateescape")


def _ended(code: bytes, reason: bytes, output: bytes, errors: bytes) -> EndedProgram:
    return EndedProgram(int(code), REASONS[reason], output, errors)


def _content(content: bytes) -> bytes:
    return content


def _nothing() -> None: ...
