"""Rendezvous of a sender with the workers of its servers: the sender hosts a TCPStore, which lives as long as its attempt. Into it the first worker
of a server writes the size of a group that they form, and all exchange messages about buckets (messages.py)."""

import socket
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.polling import wait_until

NOT_JOINED = "its workers did not join the sender in time"


class SenderStore:
    """The sender's side, for all servers."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.address = address
        self.store = dist.TCPStore(address, 0, None, True, timeout(), wait_for_workers=False)

    @property
    def port(self) -> int:
        return int(self.store.port)

    def workers(self, group: str, given_up: Callable[[], bool]) -> int:
        """Wait for the workers of a server to join `group`; their number, or 0 when `given_up`."""
        if not wait_until(lambda: self.store.check([_size(group)]), given_up):
            return 0
        return int(self.store.get(_size(group)))


class RemoteStore:
    """A worker's side, for one sender."""

    def __init__(self, address: str, port: int) -> None:
        """Raises OSError or RuntimeError when the sender does not answer."""
        self.address, self.port = address, port
        self.own_address = _own_address(
            address, port
        )  # fails at once when it is gone, where the store would keep trying
        """This machine's address on the route to the sender."""
        self.store = dist.TCPStore(address, port, None, False, timeout(), wait_for_workers=False)

    def join(self, group: str, worker: int, workers: int) -> None:
        """Say that this worker joins the group, one of `workers`."""
        if worker == 0:
            self.store.set(_size(group), str(workers))


def timeout() -> timedelta:
    return timedelta(seconds=protocol.SILENT_SECONDS)


def _size(group: str) -> str:
    return f"{group}/size"


def _own_address(peer: str, port: int) -> str:
    with socket.create_connection((peer, port), timeout=protocol.SILENT_SECONDS) as connection:
        return str(connection.getsockname()[0])
