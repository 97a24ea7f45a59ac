"""Exchanges JSON values and arrays between ranks, over a gloo group of their own. No pickle; every wait is bounded."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rljob_trainer.wire.batch import Array

POLL_SECONDS = 1.0
"""Interval at which `Ranks.until` asks."""


class StandstillError(RuntimeError):
    """No rank made progress for too long."""


class Ranks:
    """All ranks of the process group. Every method but `send` and `receive` is collective: all ranks call it, in the same order."""

    def __init__(self, timeout_seconds: float):
        """`timeout_seconds`: how long a rank waits for its peers before it fails."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.timeout_seconds = timeout_seconds
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank. Values of other ranks are ignored. Tuples become lists, as in JSON."""
        body = _encode(value)
        size = torch.tensor([body.numel()])
        dist.broadcast(size, 0, group=self._group)
        if not self.is_first:
            body = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(body, 0, group=self._group)
        return _decode(body)

    def broadcast_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Overwrite the arrays with rank 0's. All ranks pass arrays of the same types and lengths."""
        for array in arrays.values():
            dist.broadcast(_bytes(array), 0, group=self._group)

    def send(self, block: Array, receiver: int) -> dist.Work:
        """Begin to send a block to another rank, which calls `receive`. The block must not change before `wait` of the result has
        returned. Not collective."""
        work = dist.isend(_bytes(block), receiver, self._group)
        assert work, "all ranks belong to the group"
        return work

    def receive(self, block: Array, sender: int = 0) -> None:
        """Fill the block with the one that this rank sends. Not collective."""
        dist.recv(_bytes(block), sender, self._group)

    def gather(self, value: Any) -> list[Any]:
        """[rank] -> its value, on every rank."""
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
        """Wait until threads of all ranks have finished their work.

        Args:
            done: whether those of this rank have; it may wait for the given seconds before it answers
            moved: a number that grows with their progress
            heartbeat: called whenever any rank has made progress

        Raises StandstillError when no rank makes progress for the timeout.
        """
        before, deadline = 0, time.monotonic() + self.timeout_seconds
        while True:
            of_ranks = self.gather([done(POLL_SECONDS), moved()])
            total = sum(count for _, count in of_ranks)
            if total > before:
                before, deadline = total, time.monotonic() + self.timeout_seconds
                heartbeat()
            if all(ended for ended, _ in of_ranks):
                return
            if time.monotonic() > deadline:
                raise StandstillError(f"no rank has read or written anything for {self.timeout_seconds:g} s")

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def _bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(np.uint8))


def _encode(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(body: torch.Tensor) -> Any:
    return json.loads(body.numpy().tobytes())
