"""Transport over NCCL, for buckets on GPUs: a communicator of one sender and the workers of one server. A server that dies
breaks only its own."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.nccl_library import Communicator, unique_id
from rljob_trainer.wire.weights.rendezvous import NOT_JOINED, RemoteStore, SenderStore

SENDER = 0


class _Transfer:
    """One broadcast at a time, on a stream of its own."""

    def __init__(self, unique: bytes, rank: int, size: int, given_up: Callable[[], bool] = lambda: False) -> None:
        self._device = torch.cuda.current_device()
        self._communicator = Communicator(unique, rank, size, _deadline(), given_up)
        self._stream = torch.cuda.Stream()
        self._done = torch.cuda.Event()
        self._deadline = 0.0

    def begin(self, payload: Tensor) -> None:
        """Start a broadcast. The payload must be complete, and must live until `finish` has returned."""
        with torch.cuda.device(self._device):
            self._deadline = _deadline()
            self._communicator.broadcast(payload.data_ptr(), payload.numel(), SENDER, self._stream.cuda_stream)

    def finish(self, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the broadcast is done, or `given_up`. Returns whether it is done. Raises NcclError, a RuntimeError."""
        self._communicator.wait_for_calls(self._deadline, given_up)
        self._done.record(self._stream)
        self._communicator.wait(lambda: self._done.query() or given_up(), self._deadline)
        return self._done.query()

    def abort(self) -> None:
        self._communicator.abort()


class SenderEnd:
    """Rank 0 of the group."""

    def __init__(self, home: SenderStore, name: str, given_up: Callable[[], bool]) -> None:
        """Wait for the workers to join the group `name`, until `given_up`. Raises NcclError and other RuntimeErrors."""
        self.workers = home.workers(name, given_up)
        if not self.workers:
            raise RuntimeError(NOT_JOINED)
        unique = unique_id()
        home.store.set(_id(name), unique.hex())
        self._transfer = _Transfer(unique, SENDER, self.workers + 1, given_up)
        self._sent: Tensor | None = None

    def describe(self, payload: Tensor) -> dict[str, Any]:
        """What the message to the workers must contain: nothing."""
        return {}

    def send(self, payload: Tensor) -> None:
        """Start to send a bucket, which the workers have begun to receive; `wait` waits for it."""
        self._sent = payload
        self._transfer.begin(payload)

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent, or `given_up`. Raises NcclError when the other end is gone, or after SILENT_SECONDS."""
        if self._sent is not None and self._transfer.finish(given_up):
            self._sent = None

    def close(self) -> None:
        self._transfer.abort()
        self._sent = None


class WorkerEnd:
    """Rank 1 and up of the group."""

    def __init__(self, home: RemoteStore, name: str, worker: int, workers: int) -> None:
        """Join the group `name` as `worker` of `workers`: this process's place in its server. Raises RuntimeError when the sender does not answer."""
        home.join(name, worker, workers)
        self._transfer = _Transfer(bytes.fromhex(home.store.get(_id(name)).decode()), worker + 1, workers + 1)
        self._received: Tensor | None = None
        """Kept as long as NCCL may write to it."""

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`, on the GPU; `wait` waits for it."""
        torch.cuda.current_stream().synchronize()  # earlier work may still use this memory
        self._received = payload
        self._transfer.begin(payload)

    def wait(self) -> None:
        """Wait until the payload is received. Raises NcclError when the sender is gone, or after SILENT_SECONDS."""
        self._transfer.finish()
        self._received = None

    def close(self) -> None:
        self._transfer.abort()
        self._received = None


def _deadline() -> float:
    return time.monotonic() + protocol.SILENT_SECONDS


def _id(name: str) -> str:
    return f"{name}/nccl"
