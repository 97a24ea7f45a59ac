"""A torch_dist load that tells of its progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import torch as strategy


@contextmanager
def telling(beat: Callable[[], None]) -> Iterator[None]:
    """`beat` is called with every tensor that is read inside. megatron makes the planner, which is told of each, itself (strategies/torch.py:982)."""

    class Telling(strategy.MCoreLoadPlanner):
        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            super().commit_tensor(read_item, tensor)
            beat()

    theirs, strategy.MCoreLoadPlanner = strategy.MCoreLoadPlanner, Telling
    try:
        yield
    finally:
        strategy.MCoreLoadPlanner = theirs
