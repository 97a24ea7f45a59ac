"""The clients of the driver, one for rank 0 of each gang: blocking calls, one at a time, and heartbeats, which have no answer."""

import json
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.callbacks import never, nothing
from rljob_trainer.failure import PeerLost
from rljob_trainer.wire.arrays import Stream, allocated, chunks, raw
from rljob_trainer.wire.batch import Array
from rljob_trainer.wire.calls import LOG_PROBS, Caller, DriverCalls, RoleCalls, remote
from rljob_trainer.wire.channel import LENGTH, connect, encode
from rljob_trainer.wire.service import ServiceCalls

HEARTBEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1
GONE = "the driver ended, and this rank with it: driver.log, next to this log, says why"
"""The last line of a rank's log, which people read first."""


class DriverLost(PeerLost):
    """The driver ended, and has written why into its own error file. See failure.PeerLost."""


class Client(Caller):
    """Calls that rank 0 of every gang makes. All raise DriverLost when the driver is gone."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._heartbeats, self._sent = 0, 0.0

    def read(self, described: list[list[Any]]) -> dict[str, Array]:
        """Read the arrays that follow an answer. `described`: their names, types and lengths, from the answer."""
        arrays = allocated(described)
        for array in arrays.values():
            self.read_into(raw(array))
        return arrays

    part = remote(DriverCalls.part)

    def read_into(self, block: memoryview) -> None:
        """Fill the block with the next bytes of the arrays that follow an answer."""
        while block:
            try:
                count = self._reader.readinto(block)
            except OSError:
                count = 0
            if not count:
                raise DriverLost(GONE)
            block = block[count:]

    def heartbeat(self) -> None:
        """Progress was made: a micro-batch, a bucket, a file. Sent at most five times a second, with the count of calls."""
        self._heartbeats += 1
        now = time.monotonic()
        if now - self._sent >= HEARTBEAT_SECONDS:
            self._send({"call": DriverCalls.heartbeat.__name__, "count": self._heartbeats})
            self._heartbeats, self._sent = 0, now

    def awaiting(self, what: str) -> None:
        """Report what rank 0 waits for; empty: nothing any more."""
        self._send({"call": DriverCalls.awaiting.__name__, "what": what})

    def updating(self) -> None:
        """Report that the batch is measured, and the update begins."""
        self._send({"call": DriverCalls.updating.__name__})

    def call(self, name: str, arguments: Mapping[str, Any], arrays: Stream | None = None) -> Any:
        """The answer. `arrays`: one-dimensional, sent along."""
        given = {"arrays": arrays.described} if arrays else {}
        self._send({"call": name, **arguments, **given}, arrays)
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return json.loads(self._read(length))

    def _send(self, message: dict[str, Any], arrays: Stream | None = None) -> None:
        try:
            self._socket.sendall(encode(message))
            for chunk in chunks(arrays.pieces) if arrays else ():
                self._socket.sendall(chunk)
        except OSError:
            raise DriverLost(GONE) from None

    def _read(self, count: int) -> bytes:
        body = bytearray(count)
        self.read_into(memoryview(body))
        return bytes(body)


def heartbeat_of(client: Client | None) -> Callable[[], None]:
    """The heartbeat of a rank. Only rank 0 has a client; it cannot progress for long without the others, so its heartbeats are enough."""
    return client.heartbeat if client else nothing


class DriverClient(Client):
    """Calls of the trainer's rank 0. wire/calls.py describes them."""

    @staticmethod
    def connect(path: Path, error_file: Path, seconds: float) -> "DriverClient":
        """Connect, waiting for a driver that is still starting, but not for one that has failed. Raises DriverLost."""
        return DriverClient(_to_own_driver(path, error_file, seconds))

    steps = remote(DriverCalls.steps)
    start = remote(DriverCalls.start)
    colocated = remote(DriverCalls.colocated)
    next = remote(DriverCalls.next)
    trained = remote(DriverCalls.trained)
    learnt = remote(DriverCalls.learnt)
    save_gangs = remote(DriverCalls.save_gangs)
    gangs_saved = remote(DriverCalls.gangs_saved)
    replicas = remote(DriverCalls.replicas)
    published = remote(DriverCalls.published)
    evaluate = remote(DriverCalls.evaluate)
    held_out = remote(DriverCalls.held_out)
    evaluated = remote(DriverCalls.evaluated)
    saving = remote(DriverCalls.saving)
    save_buffer = remote(DriverCalls.save_buffer)
    buffer_saved = remote(DriverCalls.buffer_saved)
    saved = remote(DriverCalls.saved)
    connected = remote(DriverCalls.connected)
    exported = remote(DriverCalls.exported)
    uploaded = remote(DriverCalls.uploaded)

    def learn(self, step: int, columns: Stream) -> None:
        """See DriverCalls.learn."""
        self.call(DriverCalls.learn.__name__, {"step": step}, columns)

    def log_probs(self, step: int, values: Array) -> None:
        """See DriverCalls.log_probs."""
        self.call(DriverCalls.log_probs.__name__, {"step": step}, Stream.of({LOG_PROBS: values}))

    def end(self, export: str) -> None:
        """See DriverCalls.end. Closes the connection."""
        self.call(DriverCalls.end.__name__, {"export": export})
        self._socket.close()


class ServiceDriverClient(Client):
    """Calls of the trainer's rank 0 in `task: service`. wire/service.py describes them."""

    @staticmethod
    def connect(directory: Path, seconds: float) -> "ServiceDriverClient":
        """See DriverClient.connect. `directory`: of the attempt."""
        return ServiceDriverClient(_to_own_driver(directory / "driver.sock", directory / "error-driver.json", seconds))

    ready = remote(ServiceCalls.ready)
    next = remote(ServiceCalls.next)

    def done(self, result: bytes) -> None:
        """See ServiceCalls.done."""
        arrays: dict[str, Array] = {"result": np.frombuffer(result, np.uint8)}
        self.call(ServiceCalls.done.__name__, {}, Stream.of(arrays))

    def end(self) -> None:
        """See ServiceCalls.end. Closes the connection."""
        self.call(ServiceCalls.end.__name__, {})
        self._socket.close()


class RoleClient(Client):
    """Calls of rank 0 of another gang (wire/calls.py). All raise DriverLost when the driver is gone, or does not answer within the seconds given to
    `connect`."""

    @staticmethod
    def connect(address: tuple[str, int], role: str, attempt: int, token: str, seconds: float) -> "RoleClient":
        """Connect, waiting for a driver that is still starting, and show the job's token. Raises DriverLost."""
        lost = f"no driver answers at {address[0]}:{address[1]}"
        connection = _connected(partial(socket.create_connection, address, timeout=seconds), (OSError,), seconds, lost)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = RoleClient(connection)
        client.call("hello", {"role": role, "attempt": attempt, "token": token})
        return client

    next = remote(RoleCalls.next)
    saved = remote(RoleCalls.saved)

    def done(self, arrays: Stream | None = None, metrics: dict[str, float] | None = None) -> None:
        """See RoleCalls.done."""
        self.call(RoleCalls.done.__name__, {"metrics": metrics}, arrays)

    def end(self) -> None:
        """See RoleCalls.end. Closes the connection."""
        self.call(RoleCalls.end.__name__, {})
        self._socket.close()


def _to_own_driver(path: Path, error_file: Path, seconds: float) -> socket.socket:
    """A connection to the driver next to this rank."""
    starting = (FileNotFoundError, ConnectionRefusedError)
    lost = "the driver did not start: see driver.log"
    return _connected(partial(connect, path), starting, seconds, lost, error_file.exists)


def _connected(
    connect: Callable[[], socket.socket],
    starting: tuple[type[OSError], ...],
    seconds: float,
    lost: str,
    has_failed: Callable[[], bool] = never,
) -> socket.socket:
    """Call `connect` until it does not raise `starting`. Raises DriverLost with the message `lost` after `seconds`, or once `has_failed`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except starting:
            if has_failed() or time.monotonic() > deadline:
                raise DriverLost(lost) from None
            time.sleep(RETRY_SECONDS)
