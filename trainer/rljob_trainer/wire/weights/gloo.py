"""Transport over gloo: a group of one sender and the workers of one server. A server that dies breaks only its own groups.

The destructor of `ProcessGroupGloo` waits for pending work while it holds the GIL, so a group is closed only after that has ended.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rljob_trainer.wire.weights.polling import wait_until
from rljob_trainer.wire.weights.rendezvous import NOT_JOINED, RemoteStore, SenderStore, timeout

JOIN_SECONDS = 20.0
"""How long a member waits for each other one, once all have been asked to join."""
_BEGINNING = threading.Lock()
"""Held while a collective is started, which uses state that torch shares between groups; the transfer itself does not. Each replica has a thread."""


class SenderEnd:
    """Rank 0 of the group."""

    def __init__(self, home: SenderStore, name: str, given_up: Callable[[], bool]) -> None:
        """Wait for the workers to join the group `name`. Raises RuntimeError when `given_up` before that."""
        self.workers = workers = home.workers(name, given_up)
        if not workers:
            raise RuntimeError(NOT_JOINED)
        store: Any = home.store
        own = store.clone()  # gloo waits in it, with a lock that other threads need for theirs
        made = _in_background(lambda: _group(own, name, 0, workers + 1, home.address))
        if not wait_until(made.done, given_up):
            raise RuntimeError(NOT_JOINED)
        self._group = made.result()
        self._pending: dist.Work | None = None

    def describe(self, payload: Tensor) -> dict[str, Any]:
        """What the message to the workers must contain: nothing."""
        return {}

    def send(self, payload: Tensor) -> None:
        """Start to send a bucket, which the workers have begun to receive; `wait` waits for it."""
        with _BEGINNING:
            self._pending = self._group.broadcast([payload], _from_sender())

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent, or `given_up`. Raises RuntimeError when the other end is gone, or after SILENT_SECONDS."""
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

    def __init__(self, home: RemoteStore, name: str, worker: int, workers: int) -> None:
        """Join the group `name` as `worker` of `workers`: this process's place in its server. Raises RuntimeError when the sender does not answer."""
        home.join(name, worker, workers)
        made = _in_background(lambda: _group(home.store, name, worker + 1, workers + 1, home.own_address))
        wait_until(made.done)
        self._group: Any = made.result()
        self._pending: dist.Work | None = None

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`; `wait` waits for it."""
        self._pending = self._group.broadcast([payload], _from_sender())

    def wait(self) -> None:
        """Wait until the payload is received. Raises RuntimeError when the sender is gone, or after SILENT_SECONDS."""
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


def _from_sender() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    options.timeout = timeout()
    return options


def _group(
    store: dist.Store, name: str, rank: int, size: int, address: str
) -> Any:  # torch's stub of ProcessGroupGloo lacks its methods
    backend: Any = dist.ProcessGroupGloo
    options = backend._Options()
    options._timeout = timedelta(seconds=JOIN_SECONDS)
    options._devices = [backend.create_device(hostname=address)]
    return backend(dist.PrefixStore(f"{name}/gloo", store), rank, size, options)
