"""A torch_dist load that reports its progress. Can go when `dist_checkpointing.load` takes a planner or a callback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import torch as strategy

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch


@contextmanager
def reporting_reads(heartbeat: Callable[[], None]) -> Iterator[None]:
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


PATCHES = (
    Patch(
        "progress of loads",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={"megatron/core/dist_checkpointing/strategies/torch.py:MCoreLoadPlanner": "03971bc15361ab06"},
    ),
)
