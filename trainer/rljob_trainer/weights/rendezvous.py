"""How the workers of one replica find the trainer: the trainer holds a TCPStore, the first worker writes the size of the group there."""

import socket
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from rljob_trainer.weights.polling import wait_until
from rljob_trainer.weights.protocol import TRANSFER_SECONDS

SIZE_KEY = "size"


class TrainerStore:
    """The trainer's side."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.store = dist.TCPStore(address, 0, None, True, timeout(), wait_for_workers=False)
        self.workers = 0
        """Those that have come."""

    @property
    def port(self) -> int:
        return int(self.store.port)

    def size(self, given_up: Callable[[], bool]) -> int:
        """Ranks of the group once its workers have come; 0 when nobody will come any more."""
        if not wait_until(lambda: self.store.check([SIZE_KEY]), given_up):
            return 0
        self.workers = int(self.store.get(SIZE_KEY)) - 1
        return self.workers + 1


def join(address: str, port: int, worker: int, workers: int) -> tuple[dist.TCPStore, str]:
    """The trainer's store and this machine's address that faces it. Raises OSError or RuntimeError when the trainer does not answer."""
    own_address = _own_address(address, port)  # fails at once when the trainer has gone; the store would try on
    store = dist.TCPStore(address, port, None, False, timeout(), wait_for_workers=False)
    if worker == 0:
        store.set(SIZE_KEY, str(workers + 1))
    return store, own_address


def timeout() -> timedelta:
    return timedelta(seconds=TRANSFER_SECONDS)


def _own_address(peer: str, port: int) -> str:
    with socket.create_connection((peer, port), timeout=TRANSFER_SECONDS) as connection:
        return str(connection.getsockname()[0])
