"""Transport over CUDA IPC, between processes on one host that see the same GPUs: the trainer sends a handle of a bucket, the workers copy it.

torch counts each sharing of memory as one reader, and frees it only when exactly as many have read it (torch 2.11, torch/csrc/CudaIPCTypes.cpp). So a
payload that two workers read has to be shared twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.weights.polling import wait_until
from rljob_trainer.weights.rendezvous import TrainerStore, join

COPIES_KEY = "copies"


class TrainerEnd:
    """The trainer's end. There is no group: every message carries the handles that the workers need."""

    def __init__(self, address: str) -> None:
        """`address`: an IP of this machine."""
        self.address = address
        self.rendezvous = TrainerStore(address)
        self._sent: Tensor | None = None
        self._copies = 0

    def accept(self, given_up: Callable[[], bool]) -> None:
        """Wait for the workers to join, or until `given_up`."""
        self.rendezvous.size(given_up)

    def send(self, payload: Tensor) -> dict[str, Any]:
        """Share the payload, which is kept until `wait` has returned. Returns the GPU and a handle for each worker, for the message."""
        workers = self.rendezvous.workers
        self._sent, self._copies = payload, self._copies + workers
        return {"gpu": _uuid(payload.get_device()), "handles": [_shared(payload) for _ in range(workers)]}

    def wait(self, given_up: Callable[[], bool]) -> None:
        """Wait until every worker has copied the payload, or `given_up`, which is the time limit."""
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
        self.store.add(COPIES_KEY, 1)  # the trainer's memory is closed by now

    def wait(self) -> None:
        """Nothing to do: `receive` has waited."""

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
    """The handle with which one worker opens the payload, as in torch.multiprocessing, but as JSON instead of pickle."""
    _, *handle = payload.untyped_storage()._share_cuda_()
    return [h.hex() if isinstance(h, bytes) else h for h in handle]


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
