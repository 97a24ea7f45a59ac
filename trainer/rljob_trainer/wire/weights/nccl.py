"""Transport over NCCL, for buckets on GPUs: a communicator of the trainer and the workers of one replica. A replica that dies breaks only its own."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights.nccl_library import Communicator, unique_id
from rljob_trainer.wire.weights.protocol import TRANSFER_SECONDS
from rljob_trainer.wire.weights.rendezvous import TrainerStore, join

ID_KEY = "nccl"
TRAINER = 0


class _Transfer:
    """One broadcast at a time, on a stream of its own."""

    def __init__(self, unique: bytes, rank: int, size: int) -> None:
        self._device = torch.cuda.current_device()
        self._communicator = Communicator(unique, rank, size, _deadline())
        self._stream = torch.cuda.Stream()
        self._done = torch.cuda.Event()
        self._deadline = 0.0

    def begin(self, payload: Tensor) -> None:
        """Start a broadcast. The payload must be complete, and must live until `finish` has returned."""
        with torch.cuda.device(self._device):
            self._deadline = _deadline()
            self._communicator.broadcast(payload.data_ptr(), payload.numel(), TRAINER, self._stream.cuda_stream)

    def finish(self, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the broadcast is done, or `given_up`. Returns whether it is done. Raises NcclError, a RuntimeError."""
        self._communicator.wait_for_calls(self._deadline, given_up)
        self._done.record(self._stream)
        self._communicator.wait(lambda: self._done.query() or given_up(), self._deadline)
        return self._done.query()

    def abort(self) -> None:
        self._communicator.abort()


class TrainerEnd:
    """Rank 0 of the group."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine that the workers can reach."""
        self.address = address
        self.rendezvous = TrainerStore(address)
        self._transfer: _Transfer | None = None
        self._sent: Tensor | None = None

    def accept(self, given_up: Callable[[], bool]) -> None:
        """Wait for the workers to join; returns without a group when `given_up`. Raises NcclError."""
        if size := self.rendezvous.size(given_up):
            unique = unique_id()
            self.rendezvous.store.set(ID_KEY, unique.hex())
            self._transfer = _Transfer(unique, TRAINER, size)

    def send(self, payload: Tensor) -> dict[str, Any]:
        """Start to send a bucket; `wait` waits for it. Returns what the message to the workers must contain: nothing."""
        assert self._transfer
        self._sent = payload
        self._transfer.begin(payload)
        return {}

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent, or `given_up`. Raises NcclError when the other end is gone, or after TRANSFER_SECONDS."""
        if self._transfer and self._sent is not None and self._transfer.finish(given_up):
            self._sent = None

    def close(self) -> None:
        if self._transfer:
            self._transfer.abort()
        self._transfer = self._sent = None


class WorkerEnd:
    """Rank 1 and up of the group."""

    def __init__(self, address: str, port: int, worker: int, workers: int) -> None:
        """`worker` of `workers`: this process's place in its replica. Raises OSError or RuntimeError when the trainer does not answer."""
        self.store, _ = join(address, port, worker, workers)
        self._transfer = _Transfer(bytes.fromhex(self.store.get(ID_KEY).decode()), worker + 1, workers + 1)
        self._received: Tensor | None = None
        """Kept as long as NCCL may write to it."""

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`, on the GPU; `wait` waits for it."""
        torch.cuda.current_stream().synchronize()  # earlier work may still use this memory
        self._received = payload
        self._transfer.begin(payload)

    def wait(self) -> None:
        """Wait until the payload is received. Raises NcclError when the trainer is gone, or after TRANSFER_SECONDS."""
        self._transfer.finish()
        self._received = None

    def close(self) -> None:
        self._transfer.abort()
        self._received = None


def _deadline() -> float:
    return time.monotonic() + TRANSFER_SECONDS
