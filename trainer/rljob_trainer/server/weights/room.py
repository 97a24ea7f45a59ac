"""Where a worker has room for a second copy of its parameters."""

import psutil
import torch
from torch.nn import Module

from rljob_api.sizing.replica import FreeBytes, where
from rljob_trainer.machine import memory_limit, memory_used


def shadow_device(model: Module, device: torch.device, workers: int) -> torch.device | None:
    """The device of the copy: that of the model, or host memory; None: there is room in neither. `workers`: of this server in
    this pod, which share its host memory."""
    size = sum(p.nbytes for p in model.parameters())
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    place = where(size, FreeBytes(gpu=free, host=_free_host_memory() / workers))
    return {"gpu": device, "host": torch.device("cpu"), "in place": None}[place]


def _free_host_memory() -> float:
    """Bytes that this container, with all of its workers, may still use."""
    free = float(psutil.virtual_memory().available)
    limit = memory_limit()
    return free if limit is None else min(free, limit - max(memory_used(), psutil.Process().memory_info().rss))
