"""A torch_dist load that tells of its progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import torch as strategy


@contextmanager
def reporting(heartbeat: Callable[[], None]) -> Iterator[None]:
    """`heartbeat` is called with every tensor that is read inside. megatron makes the planner, which sees each, itself (strategies/torch.py:982)."""

    class Reporting(strategy.MCoreLoadPlanner):
        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            super().commit_tensor(read_item, tensor)
            heartbeat()

    theirs, strategy.MCoreLoadPlanner = strategy.MCoreLoadPlanner, Reporting
    try:
        yield
    finally:
        strategy.MCoreLoadPlanner = theirs
