"""Buckets between processes that share a GPU or a host's GPUs: the trainer says where a bucket lies, the workers copy it (CUDA IPC).

torch counts the readers of what is shared down to 0, from 1 for each time that it was shared (torch 2.11, torch/csrc/CudaIPCTypes.cpp), and keeps
memory whose count is anything else: a payload that two workers read has to be shared twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class TrainerEnd:
    """Nothing is connected: every message carries what the workers need."""

    port = 0

    def __init__(self, address: str, workers: int) -> None:
        """`workers`: of a server."""
        self.address, self._workers = address, workers
        self._sent: Tensor | None = None

    def accept(self, given_up: Callable[[], bool]) -> None: ...

    def send(self, payload: Tensor) -> dict[str, Any]:
        """What a worker needs to find the payload, which has to live until `wait`."""
        self._sent = payload
        return {"gpu": _uuid(payload.get_device()), "handles": [_shared(payload) for _ in range(self._workers)]}

    def wait(self) -> None:
        self._sent = None

    close = wait


class WorkerEnd:
    """A process on the same host, to which the trainer's GPU is visible."""

    def __init__(self, address: str, port: int, worker: int, workers: int) -> None:
        """Of any address: see the trainer's end."""
        self._worker = worker

    def receive(self, payload: Tensor, message: dict[str, Any]) -> None:
        """Fill `payload`. Raises RuntimeError when the trainer's memory cannot be opened."""
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
