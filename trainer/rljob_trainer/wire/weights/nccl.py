"""Transport over NCCL, for buckets on GPUs: a communicator of one sender and all workers of all servers. NCCL broadcasts along a ring, in which
everyone passes on what it receives while it receives. So a bucket leaves the sender once, however many servers there are."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights import protocol
from rljob_trainer.wire.weights.door import Membership
from rljob_trainer.wire.weights.nccl_library import Communicator, NcclError, unique_id
from rljob_trainer.wire.weights.polling import CalledOffError
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import RemoteStore, SenderStore

SENDER = 0
POLL_SECONDS = 0.2
"""Interval at which a worker that waits for the sender finds out whether others have given up."""


class _Transfer:
    """One broadcast at a time, on a stream of its own."""

    def __init__(self, unique: bytes, rank: int, size: int, given_up: Callable[[], bool]) -> None:
        self._device = torch.cuda.current_device()
        self._communicator = Communicator(unique, rank, size, _after(protocol.SILENT_SECONDS), given_up)
        self._stream = torch.cuda.Stream()
        self._done = torch.cuda.Event()
        self._deadline = 0.0

    def begin(self, payload: Tensor) -> None:
        """Start a broadcast. The payload must be complete, and must live until `finish` has returned."""
        with torch.cuda.device(self._device):
            self._deadline = _after(protocol.transfer_seconds(payload.numel()))
            self._communicator.broadcast(payload.data_ptr(), payload.numel(), SENDER, self._stream.cuda_stream)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Wait until the broadcast is done. Raises NcclError, a RuntimeError, and CalledOffError when `given_up`."""
        self._communicator.wait_for_calls(self._deadline, given_up)
        self._done.record(self._stream)
        self._communicator.wait(lambda: self._done.query() or given_up(), self._deadline)
        if not self._done.query():
            raise CalledOffError

    def abort(self) -> None:
        self._communicator.abort()


class SenderEnd:
    """Rank 0 of the group."""

    def __init__(
        self, home: SenderStore, group: str, members: Sequence[ServerWorker], given_up: Callable[[], bool]
    ) -> None:
        """Wait for all workers. Raises NcclError, and CalledOffError when `given_up` before they are there."""
        unique = unique_id()
        home.set(_id(group), unique.hex())
        self._transfer = _Transfer(unique, SENDER, len(members) + 1, given_up)
        self._sent: Tensor | None = None

    def describe(self, payload: Tensor) -> dict[str, Any]:
        """What the message to the workers must contain: nothing."""
        return {}

    def send(self, payload: Tensor) -> None:
        """Start to send a bucket, which the workers have begun to receive; `wait` waits for it."""
        self._sent = payload
        self._transfer.begin(payload)

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the bucket is sent. Raises NcclError when a worker is gone, or after transfer_seconds; CalledOffError when `given_up`."""
        self._transfer.finish(given_up)
        self._sent = None

    def close(self) -> None:
        self._transfer.abort()
        self._sent = None


class WorkerEnd:
    """Rank 1 and up of the group."""

    def __init__(self, own: Membership, given_up: Callable[[], bool]) -> None:
        """Wait for the others. Raises NcclError, and CalledOffError when `given_up`."""
        unique = _awaited(own.home, _id(own.group), given_up)
        self._transfer = _Transfer(bytes.fromhex(unique), own.place + 1, len(own.members) + 1, given_up)
        self._received: Tensor | None = None
        """Kept as long as NCCL may write to it."""

    def receive(self, payload: Tensor, _: dict[str, Any]) -> None:
        """Start to receive into `payload`, on the GPU; `wait` waits for it."""
        torch.cuda.current_stream().synchronize()  # earlier work may still use this memory
        self._received = payload
        self._transfer.begin(payload)

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until the payload is received. Raises NcclError when another is gone, or after transfer_seconds; CalledOffError when `given_up`."""
        self._transfer.finish(given_up)
        self._received = None

    def close(self) -> None:
        self._transfer.abort()
        self._received = None


def _after(seconds: float) -> float:
    return time.monotonic() + seconds


def _awaited(home: RemoteStore, key: str, given_up: Callable[[], bool]) -> str:
    deadline = _after(protocol.SILENT_SECONDS)
    while True:
        value = home.get(key, POLL_SECONDS)
        if value:
            return value
        if given_up():
            raise CalledOffError
        if time.monotonic() > deadline:
            raise NcclError("the sender did not come in time")


def _id(group: str) -> str:
    return f"{group}/nccl"
