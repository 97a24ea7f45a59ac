"""Buckets between processes that share a GPU or a host's GPUs: the trainer says where a bucket lies, the workers copy it (CUDA IPC).

torch counts the readers of what is shared down to 0, from 1 for each time that it was shared (torch 2.11, torch/csrc/CudaIPCTypes.cpp), and keeps
memory whose count is anything else: a payload that two workers read has to be shared twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.weights.polling import wait_until
from rljob_trainer.weights.rendezvous import TrainerStore, join

COPIES_KEY = "copies"


class TrainerEnd:
    """Only the store connects the two: every message carries what the workers need."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine."""
        self.address = address
        self.rendezvous = TrainerStore(address)
        self._sent: Tensor | None = None
        self._copies = 0

    def accept(self, given_up: Callable[[], bool]) -> None:
        """Wait for the workers, or until nobody will come any more."""
        self.rendezvous.size(given_up)

    def send(self, payload: Tensor) -> dict[str, Any]:
        """What a worker needs to find the payload, which lives until `wait`."""
        workers = self.rendezvous.workers
        self._sent, self._copies = payload, self._copies + workers
        return {"gpu": _uuid(payload.get_device()), "handles": [_shared(payload) for _ in range(workers)]}

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Until every worker has copied the payload, or `given_up`, which sets the time limit."""
        if wait_until(self._copied, given_up):
            self._sent = None

    def _copied(self) -> bool:
        return int(self.rendezvous.store.add(COPIES_KEY, 0)) >= self._copies

    def close(self) -> None:
        self._sent = None


class WorkerEnd:
    """A process on the same host, to which the trainer's GPU is visible."""

    def __init__(self, address: str, port: int, worker: int, workers: int) -> None:
        """`worker` of `workers`: this process's place in its replica. Raises OSError or RuntimeError when the trainer does not answer."""
        self.store, _ = join(address, port, worker, workers)
        self._worker = worker

    def receive(self, payload: Tensor, message: dict[str, Any]) -> None:
        """Fill `payload`. Raises RuntimeError when the trainer's memory cannot be opened."""
        self._copy(payload, message)
        self.store.add(COPIES_KEY, 1)  # the trainer's memory is closed here

    def wait(self) -> None:
        """`receive` has waited."""

    def _copy(self, payload: Tensor, message: dict[str, Any]) -> None:
        where = [i for i in range(torch.cuda.device_count()) if _uuid(i) == message["gpu"]]
        if not where:
            raise RuntimeError(f"the trainer's GPU {message['gpu']} is not visible to this server")
        handle = [bytes.fromhex(h) if isinstance(h, str) else h for h in message["handles"][self._worker]]
        storage = torch.UntypedStorage._new_shared_cuda(where[0], *handle)
        sent = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        payload.copy_(sent[: payload.numel()])
        torch.cuda.synchronize()

    def close(self) -> None: ...


def _shared(payload: Tensor) -> list[int | bool | str]:
    """What one worker needs to open it, as torch.multiprocessing does it; without pickle."""
    _, *handle = payload.untyped_storage()._share_cuda_()
    return [h.hex() if isinstance(h, bytes) else h for h in handle]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
