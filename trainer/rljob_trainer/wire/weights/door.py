"""Where other processes connect to a worker: the one before it in a chain, and senders that want to know whether it still exists."""

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.polling import CalledOffError
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore, exactly

KNOCK_SECONDS = 2.0
"""Time limit for the name of the group, after a connection is made, and for finding out whether a worker exists."""
POLL_SECONDS = 0.1
MOST_WAITING = 256
"""Connections of groups that this worker has not come to. It takes senders in turn, and each may have connected the one before it."""


class Door:
    """A listening socket of one worker, as long as that lives."""

    def __init__(self, host: str) -> None:
        """`host`: an IP of this machine that the others can reach."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=MOST_WAITING)
        self._listener.settimeout(POLL_SECONDS)
        self._waiting: dict[str, socket.socket] = {}
        """By the name of their group."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port, *_ = self._listener.getsockname()
        return host, port

    def take(self, group: str, given_up: Callable[[], bool]) -> socket.socket:
        """The connection of the one before in a group. Raises CalledOffError when `given_up`, and TimeoutError after SILENT_SECONDS."""
        deadline = time.monotonic() + protocol.SILENT_SECONDS
        while group not in self._waiting:
            if given_up():
                raise CalledOffError
            if time.monotonic() > deadline:
                raise TimeoutError("the one before did not connect in time")
            with suppress(TimeoutError):  # nobody came
                self._admit(self._listener.accept()[0])
        return self._waiting.pop(group)

    def clear(self) -> None:
        """Let in whoever is outside: who only knocked takes up room there."""
        outside = select.poll()
        outside.register(self._listener, select.POLLIN)
        while outside.poll(0):
            self._admit(self._listener.accept()[0])

    def close(self) -> None:
        for connection in (self._listener, *self._waiting.values()):
            connection.close()
        self._waiting = {}

    def _admit(self, connection: socket.socket) -> None:
        connection.settimeout(KNOCK_SECONDS)
        try:
            group = exactly(connection, exactly(connection, 1)[0]).decode()
        except (OSError, UnicodeDecodeError):
            connection.close()
            return
        self._waiting[group] = connection
        if len(self._waiting) > MOST_WAITING:
            self._waiting.pop(next(iter(self._waiting))).close()


@dataclass(frozen=True, slots=True)
class Membership:
    """A worker in the group of one sender: what its end of a connection is made from."""

    home: RemoteStore
    """The sender's."""
    group: str
    members: Sequence[ServerWorker]
    place: int
    """Of this worker among `members`."""
    door: Door
    """This worker's."""


def enter(host: str, port: int, group: str) -> socket.socket:
    """Connect to the next in a group. Raises OSError, ConnectionRefusedError among others when it is gone."""
    connection = socket.create_connection((host, port), timeout=protocol.CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name = group.encode()
    connection.sendall(bytes([len(name)]) + name)
    return connection


def knock(host: str, port: int) -> Literal["there", "gone", "silent"]:
    """Whether somebody listens there. `silent`: that cannot be known."""
    try:
        socket.create_connection((host, port), timeout=KNOCK_SECONDS).close()
    except ConnectionRefusedError:
        return "gone"
    except OSError:
        return "silent"
    return "there"


def own_address(peer: str) -> str:
    """This machine's IP on the route to another one. Nothing is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
