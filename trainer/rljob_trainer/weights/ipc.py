"""Buckets between processes that share a GPU or a host's GPUs: the trainer says where a bucket lies, the workers copy it (CUDA IPC)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class TrainerEnd:
    """Nothing is connected: every message carries what the workers need."""

    port = 0

    def __init__(self, address: str) -> None:
        self.address = address
        self._sent: Tensor | None = None

    def accept(self, given_up: Callable[[], bool]) -> None: ...

    def send(self, payload: Tensor) -> dict[str, Any]:
        """What a worker needs to find the payload, which has to live until `settle`."""
        self._sent = payload
        _, *handle = payload.untyped_storage()._share_cuda_()  # as torch.multiprocessing does it; without pickle
        values = [h.hex() if isinstance(h, bytes) else h for h in handle]
        return {"gpu": _uuid(payload.get_device()), "handle": values}

    def settle(self) -> None:
        self._sent = None

    close = settle


class WorkerEnd:
    """A process on the same host, to which the trainer's GPU is visible."""

    def __init__(self, *_: Any) -> None:
        """Of any address: see the trainer's end."""

    def receive(self, payload: Tensor, message: dict[str, Any]) -> None:
        """Fill `payload`. Raises RuntimeError when the trainer's memory cannot be opened."""
        where = [i for i in range(torch.cuda.device_count()) if _uuid(i) == message["gpu"]]
        if not where:
            raise RuntimeError(f"the trainer's GPU {message['gpu']} is not visible to this server")
        handle = [bytes.fromhex(h) if isinstance(h, str) else h for h in message["handle"]]
        storage = torch.UntypedStorage._new_shared_cuda(where[0], *handle)
        sent = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        payload.copy_(sent[: payload.numel()])
        torch.cuda.synchronize()

    def close(self) -> None: ...


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
