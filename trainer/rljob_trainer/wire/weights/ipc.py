"""Transport over CUDA IPC, between processes on one host that see the same GPUs: the sender gives a handle of a bucket, the workers copy it.

torch counts each sharing of memory as one reader, and frees it only when exactly as many have read it (read in torch 2.11:
torch/csrc/CudaIPCTypes.cpp). So a payload that two workers read has to be shared twice, and a handle that nobody will open, because a worker refused
the payload or is gone, has to be counted as read in its place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.wire.weights.door import Membership
from rljob_trainer.wire.weights.polling import CalledOffError, wait_until
from rljob_trainer.wire.weights.protocol import ServerWorker
from rljob_trainer.wire.weights.rendezvous import SenderStore

Handle = list[int | bool | str]
"""What torch needs to open shared memory: handle, size, offset, the counter of readers with its offset, and an event. Bytes are written in hex."""


class SenderEnd:
    """The sender's end. There is no group: every message carries the handles that the workers need."""

    def __init__(
        self, home: SenderStore, group: str, members: Sequence[ServerWorker], given_up: Callable[[], bool]
    ) -> None:
        self._home, self._group, self._workers = home, group, len(members)
        self._sent: Tensor | None = None
        self._handles: list[Handle] = []
        """Of the payload, by worker."""
        self._payloads = 0

    def describe(self, payload: Tensor) -> dict[str, Any]:
        """Share the payload, which is kept until `wait` has returned. Returns the GPU and a handle for each worker, for the message."""
        self._sent, self._payloads = payload, self._payloads + 1
        self._handles = [_shared(payload) for _ in range(self._workers)]
        return {"gpu": _uuid(payload.get_device()), "handles": self._handles}

    def send(self, payload: Tensor) -> None:
        """Nothing to do: the workers copy it."""

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until every worker has copied the payload. Raises CalledOffError when `given_up`, which is the time limit."""
        if not wait_until(lambda: not self._unread(), given_up):
            raise CalledOffError
        self._sent, self._handles = None, []

    def _unread(self) -> list[Handle]:
        """Handles of the last payload whose workers have not copied it."""
        copied = (int(self._home.get(_copies(self._group, i)) or 0) for i in range(self._workers))
        return [h for h, count in zip(self._handles, copied, strict=False) if count < self._payloads]

    def close(self) -> None:
        """Called when no worker receives any more: the update is complete or abandoned, or the workers are gone."""
        for *_, counter, offset, _, _ in self._unread():
            torch.UntypedStorage._release_ipc_counter_cuda(bytes.fromhex(str(counter)), offset)
        self._sent, self._handles = None, []
        torch.cuda.ipc_collect()


class WorkerEnd:
    """A process on the same host, to which the sender's GPU is visible."""

    def __init__(self, own: Membership, given_up: Callable[[], bool]) -> None:
        self._home, self._copies, self._copied = own.home, _copies(own.group, own.place), 0
        self._place = own.place

    def receive(self, payload: Tensor, message: dict[str, Any]) -> None:
        """Fill `payload`. Raises RuntimeError when the sender's memory cannot be opened."""
        self._copy(payload, message)
        self._copied += 1
        self._home.set(self._copies, str(self._copied))  # the sender's memory is closed by now

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Nothing to do: `receive` has waited."""

    def _copy(self, payload: Tensor, message: dict[str, Any]) -> None:
        where = [i for i in range(torch.cuda.device_count()) if _uuid(i) == message["gpu"]]
        if not where:
            raise RuntimeError(f"the sender's GPU {message['gpu']} is not visible to this server")
        handle = [bytes.fromhex(h) if isinstance(h, str) else h for h in message["handles"][self._place]]
        storage = torch.UntypedStorage._new_shared_cuda(where[0], *handle)
        sent = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        payload.copy_(sent[: payload.numel()])
        torch.cuda.synchronize()

    def close(self) -> None: ...


def _copies(group: str, place: int) -> str:
    """Key of a worker's count of payloads that it has copied."""
    return f"{group}/copies/{place}"


def _shared(payload: Tensor) -> Handle:
    """The handle with which one worker opens the payload, as in torch.multiprocessing, but as JSON instead of pickle."""
    _, *handle = payload.untyped_storage()._share_cuda_()
    return [h.hex() if isinstance(h, bytes) else h for h in handle]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
