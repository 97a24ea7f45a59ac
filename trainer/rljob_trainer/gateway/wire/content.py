"""Bodies of requests: plain, or compressed as `Content-Encoding` says, by zstd or gzip.

A body of some kilobytes can stand for any number of bytes, so no more of it is decompressed than its reader has asked for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pyarrow as pa
from aiohttp import hdrs, web

SERVED = ("gzip", "zstd")
PLAIN = "identity"
MOST_READ = 2**31
"""Bytes of a body that are read, and dropped, to answer that it is too large: protobuf's own limit."""
SMALL = 2**14
"""Bytes of a body that are decompressed in the event loop."""
READ_SECONDS = 120.0
"""For which a body may come in: memory is kept for it from its beginning, also where its client has vanished."""


@dataclass(frozen=True, slots=True)
class Received:
    """A body as it came."""

    body: bytes
    """The beginning of one that is larger than its reader has room for."""
    size: int
    """Bytes of all of it."""
    encoding: str

    async def plain(self, most: int) -> bytes:
        """Decompressed; the first `most` bytes. Raises ValueError for a body that is not of its encoding, or ends too early."""
        if self.encoding == PLAIN:
            return self.body[:most]
        if most <= SMALL:
            return _decompressed(self.body, self.encoding, most)
        return await asyncio.to_thread(_decompressed, self.body, self.encoding, most)


def encoding_of(request: web.Request) -> str:
    """How the body is compressed. Raises HTTPUnsupportedMediaType."""
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, PLAIN).strip().lower()
    if encoding not in (PLAIN, *SERVED):
        text = f"a body of Content-Encoding {encoding} is not read: send it plain, or compressed by one of {', '.join(SERVED)}"
        raise web.HTTPUnsupportedMediaType(text=text)
    return encoding


async def received(request: web.Request, most: int) -> Received:
    """The body, of which `most` bytes are kept. Raises HTTPUnsupportedMediaType, HTTPRequestEntityTooLarge, HTTPRequestTimeout."""
    encoding, parts, size = encoding_of(request), list[bytes](), 0
    async with _in_time(request):
        async for part in request.content.iter_any():
            if size < most:
                parts.append(part)
            size += len(part)
            if size > MOST_READ:
                raise web.HTTPRequestEntityTooLarge(MOST_READ, size)
    return Received(b"".join(parts)[:most], size, encoding)


async def whole(request: web.Request, most: int) -> bytes:
    """The body, decompressed. Raises ValueError, also when it has more than `most` bytes; HTTPUnsupportedMediaType,
    HTTPRequestTimeout."""
    encoding, body = encoding_of(request), bytearray()
    async with _in_time(request):
        async for part in request.content.iter_any():
            body += part
            if len(body) > most:
                break
    plain = await Received(bytes(body), len(body), encoding).plain(most + 1)
    if len(plain) > most:
        raise ValueError(f"the body has more than {most} bytes, which is the most that this call can have")
    return plain


@asynccontextmanager
async def _in_time(request: web.Request) -> AsyncIterator[None]:
    """No timer for a body that came with its headers: the event loop keeps thousands that are over in memory."""
    seconds = None if request.content.is_eof() else READ_SECONDS
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body has not come within {READ_SECONDS:g} s") from None


def _decompressed(body: bytes, encoding: str, most: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            return bytes(stream.read(most))
    except OSError as error:
        raise ValueError(f"the body is not compressed by {encoding}: {error}") from None
