"""Transport over TCP, for buckets in host memory: a chain from the sender through all workers of all servers, each of which passes on what it
receives while it receives. So a bucket leaves the sender once, however many servers there are."""

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights.door import Membership, enter
from rljob_trainer.wire.weights.polling import CalledOffError, wait_until
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import SenderStore

PIECE = 2**20
"""Bytes that a worker receives at most before it passes them on."""


class SenderEnd:
    """The beginning of the chain."""

    def __init__(
        self, home: SenderStore, group: str, members: Sequence[ServerWorker], given_up: Callable[[], bool]
    ) -> None:
        """Connect to the first worker. Raises OSError."""
        first, *_ = members
        self._next = enter(first.host, first.port, group)
        self._next.settimeout(None)
        self._running: Future[None] | None = None

    def describe(self, payload: Tensor) -> dict[str, Any]:
        """What the message to the workers must contain: nothing."""
        return {}

    def send(self, payload: Tensor) -> None:
        """Start to send a bucket; `wait` waits for it."""
        self._running = _in_background(lambda: self._next.sendall(_bytes(payload)))

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent, or `given_up`. Raises OSError when the next worker is gone."""
        _await(self._running, given_up)

    def close(self) -> None:
        _end(self._next)
        _await_end(self._running)


class WorkerEnd:
    """A link of the chain."""

    def __init__(self, own: Membership, given_up: Callable[[], bool]) -> None:
        """Connect to the next worker and the one before. Raises OSError, or CalledOffError when `given_up`."""
        following = own.members[own.place + 1 :]
        self._next = enter(following[0].host, following[0].port, own.group) if following else None
        try:
            self._before = own.door.take(own.group, given_up)
        except BaseException:
            _end(self._next)
            raise
        for connection in filter(None, (self._next, self._before)):
            connection.settimeout(None)
        self._running: Future[None] | None = None

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`; `wait` waits for it."""
        self._running = _in_background(lambda: self._relay(_bytes(payload)))

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the payload is received and passed on. Raises OSError when a neighbour is gone, CalledOffError when `given_up`."""
        _await(self._running, given_up)

    def close(self) -> None:
        _end(self._before)
        _end(self._next)
        _await_end(self._running)

    def _relay(self, payload: memoryview) -> None:
        at = 0
        while at < len(payload):
            size = self._before.recv_into(payload[at : at + PIECE])
            if not size:
                raise ConnectionError("the one before has left")
            if self._next:
                self._next.sendall(payload[at : at + size])
            at += size


def _bytes(payload: Tensor) -> memoryview:
    assert payload.dtype == torch.uint8
    return memoryview(payload.numpy())


def _in_background(work: Callable[[], None]) -> Future[None]:
    """The thread is no daemon, which would abort the process at its end. It ends when its connections do."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weights-chain").start()
    return future


def _await(running: Future[None] | None, given_up: Callable[[], bool]) -> None:
    if running is None:
        return
    if not wait_until(running.done, given_up):
        raise CalledOffError
    running.result()


def _await_end(running: Future[None] | None) -> None:
    with suppress(Exception):
        if running:
            running.result()


def _end(connection: socket.socket | None) -> None:
    """Close a connection, which ends what another thread does with it."""
    if connection:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
