"""Where the workers of all servers find one sender: it has a store, which lives as long as its attempt. Messages go through it (messages.py).

torch's TCPStore is not used: it looks up the name of every peer for its log. A name server whose answers are lost holds up each look-up for 5 s or
more, one after another, and with it all workers. Here nobody is looked up, and a worker gets a value when it is set, without polling.

A frame is its length (4 bytes, big-endian) and that many bytes. A worker writes frames of JSON, [key, value] to set a value and [key, seconds] to get
one. Only the latter is answered: with the value, or with an empty frame if it has not been set within so many seconds.
"""

import asyncio
import json
import socket
import struct
import threading
import weakref
from collections.abc import Iterable
from contextlib import closing, suppress

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.protocol import Offer

FIND_SECONDS = 5.0
"""Time limit for reaching the machine of a sender."""
BACKLOG = 1024
"""Workers that may connect at the same moment."""
MOST_BYTES = 2**20
"""Of what a worker writes at once."""
_LENGTH = struct.Struct(">I")


class SenderStore:
    """The sender's side: values, by key. A thread hands them to workers as long as this object lives."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        self.offer = Offer(address, int(listener.getsockname()[1]))
        self._values = values = _Values()
        threading.Thread(target=values.serve, args=(listener,), name="weights-store", daemon=True).start()
        weakref.finalize(self, values.close)

    def __len__(self) -> int:
        return len(self._values.by_key)

    def set(self, key: str, value: str) -> None:
        """`value`: not empty."""
        self._values.set(key, value)

    def get(self, key: str) -> str | None:
        """The value, if it is set."""
        return self._values.by_key.get(key)

    def keep(self, names: Iterable[str]) -> None:
        """Delete all values but those whose keys are one of `names`, a slash, and more."""
        beginnings = tuple(f"{name}/" for name in names)
        for key in [*self._values.by_key]:
            if not key.startswith(beginnings):
                self._values.by_key.pop(key, None)


class RemoteStore:
    """A worker's side. Used by one thread at a time."""

    def __init__(self, offer: Offer) -> None:
        """Raises OSError when the sender does not answer."""
        self._connection = socket.create_connection((offer.address, offer.port), FIND_SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set(self, key: str, value: str) -> None:
        """Raises OSError when the sender is gone, at the second call at the latest."""
        self._write(key, value)

    def get(self, key: str, seconds: float = 0.0) -> str | None:
        """The value; None if it has not been set within so many seconds. Raises OSError when the sender is gone, or does not answer."""
        try:
            self._write(key, seconds)
            self._connection.settimeout(seconds + protocol.SILENT_SECONDS)
            (size,) = _LENGTH.unpack(exactly(self._connection, _LENGTH.size))
            return exactly(self._connection, size).decode() or None
        except OSError:
            self.close()  # or a late answer would be read as that to another question
            raise

    def close(self) -> None:
        self._connection.close()

    def _write(self, *request: str | float) -> None:
        self._connection.settimeout(protocol.SILENT_SECONDS)
        self._connection.sendall(_frame(json.dumps(request)))


class _Values:
    """The values, and the event loop in which workers get them. Its own thread calls `serve`, any thread `set` and `close`."""

    def __init__(self) -> None:
        self.by_key: dict[str, str] = {}
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._awaited: weakref.WeakValueDictionary[str, asyncio.Event] = weakref.WeakValueDictionary()

    def set(self, key: str, value: str) -> None:
        self.by_key[key] = value
        self._loop.call_soon_threadsafe(self._wake, key)

    def serve(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # at its end it cancels all answers
            runner.run(self._serve(listener))

    def close(self) -> None:
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._answer, sock=listener, backlog=BACKLOG)
        await self._over.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, EOFError, ValueError, TypeError, asyncio.CancelledError):
            while True:
                key, given = json.loads(await _read(reader))
                if isinstance(given, str):
                    self.set(key, given)
                else:
                    writer.write(_frame(await self._get(key, float(given)) or ""))
                    await writer.drain()

    async def _get(self, key: str, seconds: float) -> str | None:
        if key not in self.by_key and seconds:
            set_meanwhile = self._awaited.setdefault(key, asyncio.Event())
            with suppress(TimeoutError):
                await asyncio.wait_for(set_meanwhile.wait(), seconds)
        return self.by_key.get(key)

    def _wake(self, key: str) -> None:
        if awaited := self._awaited.pop(key, None):
            awaited.set()


def exactly(connection: socket.socket, size: int) -> bytes:
    """The next bytes. Raises OSError when the other end is closed, or silent for the socket's time limit."""
    read = bytearray(size)
    rest = memoryview(read)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("the other end is closed")
        rest = rest[count:]
    return bytes(read)


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if size > MOST_BYTES:
        raise ValueError(f"a request of {size} bytes")
    return await reader.readexactly(size)


def _frame(text: str) -> bytes:
    body = text.encode()
    return _LENGTH.pack(len(body)) + body
