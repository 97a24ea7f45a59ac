"""Where other processes connect to a worker: the one before it in a chain, and senders that want to know whether it still exists."""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.polling import CalledOffError
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore

KNOCK_SECONDS = 2.0
"""Time limit for the whole name of the group, after a connection is made, and for finding out whether a worker exists."""
POLL_SECONDS = 0.1
MOST_WAITING = 256
"""Connections of groups that this worker has not come to. It takes senders in turn, and each may have connected the one before it."""


@dataclass(eq=False, slots=True)
class Visitor:
    """Somebody who has connected, and has not said all of the name of a group. Nobody waits for that."""

    connection: socket.socket
    deadline: float
    said: bytearray
    """The length of the name, in one byte, and the name."""

    def listen(self) -> bool:
        """Whether the name is complete. Raises OSError when the other end is closed. Reads nothing behind the name."""
        rest = 1 + self.said[0] - len(self.said) if self.said else 1
        got = self.connection.recv(rest)
        if rest and not got:
            raise ConnectionError("the other end is closed")
        self.said += got
        return len(self.said) == 1 + self.said[0]


class Door:
    """A listening socket of one worker, as long as that lives."""

    def __init__(self, host: str) -> None:
        """`host`: an IP of this machine that the others can reach."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=MOST_WAITING)
        self._listener.setblocking(False)
        self._heard = selectors.DefaultSelector()
        self._heard.register(self._listener, selectors.EVENT_READ)
        self._visitors: list[Visitor] = []
        """The oldest first."""
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
            self._hear(POLL_SECONDS)
        return self._waiting.pop(group)

    def clear(self) -> None:
        """Let in whoever is outside: who only knocked takes up room there."""
        while self._hear(0):
            pass

    def close(self) -> None:
        self._heard.close()
        for connection in (self._listener, *(v.connection for v in self._visitors), *self._waiting.values()):
            connection.close()
        self._visitors, self._waiting = [], {}

    def _hear(self, seconds: float) -> bool:
        """Let in who comes, and listen to those who are there. Returns whether anybody did anything within so many seconds."""
        ready = self._heard.select(seconds)
        for key, _ in ready:
            if key.data is None:
                self._admit()
            else:
                self._listen(key.data)
        while self._visitors and self._visitors[0].deadline < time.monotonic():
            self._send_away(self._visitors[0])
        return bool(ready)

    def _admit(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # who came has left already
            return
        connection.setblocking(False)
        visitor = Visitor(connection, time.monotonic() + KNOCK_SECONDS, bytearray())
        self._visitors.append(visitor)
        self._heard.register(connection, selectors.EVENT_READ, visitor)
        self._listen(visitor)  # most have said all by now
        if len(self._visitors) > MOST_WAITING:
            self._send_away(self._visitors[0])

    def _listen(self, visitor: Visitor) -> None:
        if visitor not in self._visitors:  # sent away by one who came in the same moment
            return
        try:
            if not visitor.listen():
                return
            group = visitor.said[1:].decode()
        except BlockingIOError:
            return
        except (OSError, UnicodeDecodeError):
            self._send_away(visitor)
            return
        self._forget(visitor)
        visitor.connection.settimeout(KNOCK_SECONDS)
        self._waiting[group] = visitor.connection
        if len(self._waiting) > MOST_WAITING:
            self._waiting.pop(next(iter(self._waiting))).close()

    def _send_away(self, visitor: Visitor) -> None:
        self._forget(visitor)
        visitor.connection.close()

    def _forget(self, visitor: Visitor) -> None:
        self._heard.unregister(visitor.connection)
        self._visitors.remove(visitor)


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
