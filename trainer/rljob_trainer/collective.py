"""Small JSON values between ranks, over a gloo group of their own: no pickle, bounded waits."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class Ranks:
    """The ranks of the attempt. Every method is collective: all ranks call it, in the same order."""

    def __init__(self, timeout_seconds: float):
        """`timeout_seconds`: how long a rank waits for its peers before it gives the attempt up."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value; what others pass is ignored."""
        body = _encode(value)
        size = torch.tensor([body.numel()])
        dist.broadcast(size, 0, group=self._group)
        if not self.is_first:
            body = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(body, 0, group=self._group)
        return _decode(body)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on every rank."""
        body = _encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([body.numel()]), group=self._group)
        filled = torch.nn.functional.pad(body, (0, max(map(int, sizes)) - body.numel()))
        bodies = [torch.empty_like(filled) for _ in range(self.world)]
        dist.all_gather(bodies, filled, group=self._group)
        return [_decode(body[: int(size)]) for body, size in zip(bodies, sizes, strict=True)]

    def all(self, value: bool) -> bool:
        """Whether it is true on every rank."""
        count = torch.tensor([int(value)])
        dist.all_reduce(count, dist.ReduceOp.MIN, group=self._group)
        return bool(count)

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def _encode(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(body: torch.Tensor) -> Any:
    return json.loads(body.numpy().tobytes())
