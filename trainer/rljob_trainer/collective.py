"""Values between ranks, in JSON or as arrays, over a gloo group of their own: no pickle, bounded waits."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rljob_trainer.arrays import Array

LOOK_SECONDS = 1.0
"""Between two looks at what is waited for."""


class StandstillError(RuntimeError):
    """Nothing moved on any rank for too long."""


class Ranks:
    """The ranks of the attempt. Every method is collective: all ranks call it, in the same order."""

    def __init__(self, timeout_seconds: float):
        """`timeout_seconds`: how long a rank waits for its peers before it gives the attempt up."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.timeout_seconds = self._timeout = timeout_seconds
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

    def broadcast_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Fill the arrays, of which every rank has the same types and lengths, with rank 0's."""
        for array in arrays.values():
            dist.broadcast(_bytes(array), 0, group=self._group)

    def send(self, block: Array, receivers: Iterable[int]) -> None:
        """From rank 0 to each of these, which call `receive`. Not collective."""
        sent = [dist.isend(_bytes(block), rank, self._group) for rank in receivers]
        for work in filter(None, sent):
            work.wait()

    def receive(self, block: Array) -> None:
        """Fill the block with what rank 0 sends. Not collective."""
        dist.recv(_bytes(block), 0, self._group)

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

    def until(self, done: Callable[[float], bool], moved: Callable[[], int], heartbeat: Callable[[], None]) -> None:
        """Until `done` on every rank; it may wait for so many seconds before it answers. `moved` counts what this rank's threads have done so far;
        `heartbeat` is called whenever it grew on any.

        Raises StandstillError when it grows nowhere for as long as a rank waits for its peers.
        """
        before, deadline = 0, time.monotonic() + self._timeout
        while True:
            found = self.gather([done(LOOK_SECONDS), moved()])
            if (total := sum(count for _, count in found)) > before:
                before, deadline = total, time.monotonic() + self._timeout
                heartbeat()
            if all(ended for ended, _ in found):
                return
            if time.monotonic() > deadline:
                raise StandstillError(f"no rank has read or written anything for {self._timeout:g} s")

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def _bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8))


def _encode(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(body: torch.Tensor) -> Any:
    return json.loads(body.numpy().tobytes())
