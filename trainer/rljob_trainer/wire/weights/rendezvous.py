"""Rendezvous of the trainer with the workers of one replica: the trainer hosts a TCPStore, into which the first worker writes the group's size."""

import socket
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from rljob_trainer.wire.weights.polling import wait_until
from rljob_trainer.wire.weights.protocol import TRANSFER_SECONDS

SIZE_KEY = "size"


class TrainerStore:
    """The trainer's side."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.store = dist.TCPStore(address, 0, None, True, timeout(), wait_for_workers=False)
        self.workers = 0
        """Workers that have joined."""

    @property
    def port(self) -> int:
        return int(self.store.port)

    def size(self, given_up: Callable[[], bool]) -> int:
        """Wait for the workers; the number of ranks in the group, or 0 when `given_up`."""
        if not wait_until(lambda: self.store.check([SIZE_KEY]), given_up):
            return 0
        self.workers = int(self.store.get(SIZE_KEY)) - 1
        return self.workers + 1


def join(address: str, port: int, worker: int, workers: int) -> tuple[dist.TCPStore, str]:
    """Connect to the trainer. Returns its store, and this machine's address on the route to it. Raises OSError or RuntimeError when it does not
    answer."""
    own_address = _own_address(
        address, port
    )  # fails at once when the trainer is gone, where the store would keep trying
    store = dist.TCPStore(address, port, None, False, timeout(), wait_for_workers=False)
    if worker == 0:
        store.set(SIZE_KEY, str(workers + 1))
    return store, own_address


def timeout() -> timedelta:
    return timedelta(seconds=TRANSFER_SECONDS)


def _own_address(peer: str, port: int) -> str:
    with socket.create_connection((peer, port), timeout=TRANSFER_SECONDS) as connection:
        return str(connection.getsockname()[0])
