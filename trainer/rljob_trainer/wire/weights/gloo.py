"""Transport over gloo: a group of the trainer and the workers of one replica. A replica that dies breaks only its own group.

The destructor of `ProcessGroupGloo` waits for pending work while it holds the GIL, so a group is closed only after that has ended.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rljob_trainer.wire.weights.polling import wait_until
from rljob_trainer.wire.weights.rendezvous import TrainerStore, join, timeout

JOIN_SECONDS = 20.0
"""How long a member waits for each other one, once all have been asked to join."""
JOINED_SECONDS = 5.0
"""How much later than the workers' ends this end of a group is made."""
_BEGINNING = threading.Lock()
"""Held while a collective is started, which uses state that torch shares between groups; the transfer itself does not. Each replica has a thread."""


class TrainerEnd:
    """Rank 0 of the group."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.address = address
        self.rendezvous = TrainerStore(address)
        self._group: Any = None
        self._pending: dist.Work | None = None

    def accept(self, given_up: Callable[[], bool]) -> None:
        """Wait for the workers to join; returns without a group when `given_up`, unless they have joined just before."""
        if size := self.rendezvous.size(given_up):
            made = _in_background(lambda: _group(self.rendezvous.store, 0, size, self.address))
            if wait_until(made.done, given_up) or wait([made], JOINED_SECONDS).done:
                self._group = made.result()

    def send(self, payload: Tensor) -> dict[str, Any]:
        """Start to send a bucket; `wait` waits for it. Returns what the message to the workers must contain: nothing."""
        if self._group is None:
            raise RuntimeError("the workers have not joined the group")
        with _BEGINNING:
            self._pending = self._group.broadcast([payload], _from_trainer())
        return {}

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent, or `given_up`. Raises RuntimeError when the other end is gone, or after TRANSFER_SECONDS."""
        if self._pending is not None and wait_until(self._pending.is_completed, given_up):
            self._finish()

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._finish()
        self._pending = self._group = None

    def _finish(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None


class WorkerEnd:
    """Rank 1 and up of the group."""

    def __init__(self, address: str, port: int, worker: int, workers: int) -> None:
        """`worker` of `workers`: this process's place in its replica. Raises OSError or RuntimeError when the trainer does not answer."""
        self.store, own_address = join(address, port, worker, workers)
        made = _in_background(lambda: _group(self.store, worker + 1, workers + 1, own_address))
        wait_until(made.done)
        self._group: Any = made.result()
        self._pending: dist.Work | None = None

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`; `wait` waits for it."""
        self._pending = self._group.broadcast([payload], _from_trainer())

    def wait(self) -> None:
        """Wait until the payload is received. Raises RuntimeError when the trainer is gone, or after TRANSFER_SECONDS."""
        if self._pending is not None:
            wait_until(self._pending.is_completed)  # in small steps, by which health.py sees that this process runs
            self._pending.wait()
            self._pending = None

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.wait()
        self._pending = self._group = None


def _in_background(make: Callable[[], Any]) -> Future[Any]:
    """Gloo waits for each member in turn, for JOIN_SECONDS or longer, even if one is known to be dead. A group that comes too late is dropped.
    The thread is no daemon, which would abort the process at its end."""
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=run, name="gloo-group").start()
    return made


def _from_trainer() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.timeout = timeout()
    return options


def _group(
    store: dist.Store, rank: int, size: int, address: str
) -> Any:  # torch's stub of ProcessGroupGloo lacks its methods
    backend: Any = dist.ProcessGroupGloo
    options = backend._Options()
    options._timeout = timedelta(seconds=JOIN_SECONDS)
    options._devices = [backend.create_device(hostname=address)]
    return backend(dist.PrefixStore("weights", store), rank, size, options)
