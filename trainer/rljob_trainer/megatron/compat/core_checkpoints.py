"""Checkpoints of megatron-core: the state of its optimizer, the progress of a load, and the queue of a save.

An optimizer's state in a checkpoint of any layout, of which every rank writes and reads only what it holds.

A checkpoint in megatron's format `fully_reshardable` has a tensor of each parameter's shape for the float32 copy and for each moment. megatron-core
(core/optimizer/distrib_optimizer.py:1690-1826) first gathers them over the data-parallel ranks, and loads all of them on each of these: 12 bytes per
parameter of a model-parallel rank on the host, however many data-parallel ranks there are. Its other formats cannot be read in other layouts
(`dp_reshardable`) or no longer be written (`fully_sharded_model_space`: mapping.py:133 refuses a `flattened_range`).

A rank holds a run of the numbers of a parameter. Such a run is made up of a few boxes: the rest of a row, whole rows, the beginning of a row.
torch.distributed.checkpoint stores boxes of any place and size, so each is a tensor with its place in the whole, and the files are in the same
format. Can go when upstream writes this format without gathering.

A torch_dist load that reports its progress. Can go when `dist_checkpointing.load` takes a planner or a callback.

The queue between megatron's checkpoint writer and its reader, where both are threads of this process (torch_dist.py). The default is served by a
process of its own, which takes 6 to 29 s to start. Can go when `FileSystemWriterAsync` takes a queue (NVIDIA/Megatron-LM#3633 moved its writers
into threads, and left the queue). What the threads write (torch_dist.py) has the form that torch's own records have.
"""

import functools
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies import torch as strategy
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.host_adam import HostAdam
from rljob_trainer.patches import Patch

MOST = 2**24
"""Numbers in a box, 64 MiB, unless one row has more: a reader holds a box besides what it fills."""

IN_PLACE = "in_place"
"""Key of the metadata of a state dict: nothing changes before it is written."""

TensorShape = tuple[int, ...]


def _patch() -> None:
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    for ours in (sharded_param_state_fully_reshardable, load_parameter_state_from_fully_reshardable):
        theirs = getattr(DistributedOptimizer, ours.__name__)
        setattr(DistributedOptimizer, ours.__name__, functools.wraps(theirs)(ours))


def sharded_param_state_fully_reshardable(
    optimizer: Any, model: Any, is_loading: bool = False, metadata: Any = None
) -> dict[int, dict[str, Any]]:
    """[place among the rank's parameters][`param`, `exp_avg` or `exp_avg_sq`] -> the rank's part of it.

    Of states in host memory megatron copies every box that has no storage of its own (filesystem_async.py:153), unless `metadata` has IN_PLACE.
    """
    in_place = bool(metadata and metadata.get(IN_PLACE)) and isinstance(optimizer.optimizer, HostAdam)
    tensors, _ = extract_sharded_tensors_and_factories(model)
    wholes = {whole.data: whole for whole in nested_values(tensors)}
    return {
        i: {
            key: _part(
                f"optimizer.state.{key}.{wholes[parameter].key}", numbers, wholes[parameter], span.start, in_place
            )
            for key, numbers in optimizer._get_main_param_and_optimizer_states(parameter).items()
            if key != "step"  # of the parameter group
        }
        for i, (parameter, span) in enumerate(held(optimizer))
    }


@torch.no_grad()
def load_parameter_state_from_fully_reshardable(optimizer: Any, state: dict[int, dict[str, torch.Tensor]]) -> None:
    """`state`: what was loaded into the tensors of the method above."""
    for i, (parameter, _) in enumerate(held(optimizer)):
        optimizer._set_main_param_and_optimizer_states(parameter, state[i])


def held(optimizer: Any) -> Iterator[tuple[torch.nn.Parameter, range]]:
    """Parameters of which this rank's part of a DistributedOptimizer has numbers, and which of them."""
    for buckets in (buckets for ranges in optimizer.gbuf_ranges for buckets in ranges.values()):
        for bucket in buckets:
            for parameter, ranges in bucket["param_map"].items():
                yield parameter, range(ranges["param"].start, ranges["param"].end)


def replica_of(whole: ShardedTensor | ShardedTensorFactory) -> Any:
    """Data-parallel ranks hold different numbers of a parameter's states, so none is the replica of another one's."""
    return (*whole.replica_id[:2], 0)


def _part(
    key: str, numbers: torch.Tensor, whole: ShardedTensor | ShardedTensorFactory, start: int, in_place: bool
) -> ShardedTensorFactory:
    """`numbers` [n] of a parameter, from its number `start` on. Loading fills them in place. `in_place`: each box has a storage of its own there."""

    def boxes(key: str, numbers: torch.Tensor, replica: Any, _: None) -> list[ShardedTensor]:
        shape = torch.empty(whole.data.shape, dtype=numbers.dtype, device="meta")
        if isinstance(whole, ShardedTensorFactory):
            parts = whole.build_fn(key, shape, replica, None)
        else:
            parts = [replace(whole, key=key, data=shape, dtype=shape.dtype, replica_id=replica)]
        pieces = [box for part in nested_values(parts) for box in _boxes_of(part, numbers, start)]
        return [replace(box, data=_storage_of_its_own(box.data)) for box in pieces] if in_place else pieces

    return ShardedTensorFactory(key, numbers, boxes, lambda _: numbers, replica_of(whole))


def _storage_of_its_own(numbers: torch.Tensor) -> torch.Tensor:
    """The same memory. As bytes, because numpy lacks bfloat16."""
    return torch.from_numpy(numbers.view(torch.uint8).numpy()).view(numbers.dtype)


def _boxes_of(part: ShardedTensor, numbers: torch.Tensor, start: int) -> Iterator[ShardedTensor]:
    """`part`: a view of the parameter, of which the rank has `numbers`, from number `start` on."""
    shape = (1,) * part.prepend_axis_num + part.local_shape
    for origin, dense in _dense(part.data.view(shape)):
        first = int(dense.storage_offset())
        begin, end = max(first, start), min(first + dense.numel(), start + len(numbers))
        at = begin - start
        for offset, size in boxes(tuple(dense.shape), begin - first, end - first):
            data = numbers[at : at + prod(size)].view(size)
            at += data.numel()
            place = tuple(map(sum, zip(part.global_offset, origin, offset, strict=True)))
            yield replace(
                part, data=data, local_shape=size, global_offset=place, axis_fragmentations=None, prepend_axis_num=0
            )


def _dense(view: torch.Tensor) -> Iterator[tuple[TensorShape, torch.Tensor]]:
    """The contiguous parts of a view, each with its place in it."""
    if view.is_contiguous():
        yield (0,) * view.dim(), view
        return
    axis = next(i for i, size in enumerate(view.shape) if size > 1)
    for i in range(view.shape[axis]):
        for origin, dense in _dense(view.narrow(axis, i, 1)):
            yield (*origin[:axis], origin[axis] + i, *origin[axis + 1 :]), dense


def boxes(shape: TensorShape, start: int, stop: int) -> Iterator[tuple[TensorShape, TensorShape]]:
    """Place and size of the boxes that hold the numbers from `start` to `stop` of an array of this shape, in their order."""
    if stop <= start:
        return
    if len(shape) == 1:
        yield from (((i,), (min(MOST, stop - i),)) for i in range(start, stop, MOST))
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if start < first * row:
        yield from _in_row(shape, first - 1, start, min(stop, first * row))
    rows = max(1, MOST // row)
    for i in range(first, last, rows):
        yield (i, *(0 for _ in shape[1:])), (min(rows, last - i), *shape[1:])
    if first <= last and last * row < stop:
        yield from _in_row(shape, last, last * row, stop)


def _in_row(shape: TensorShape, i: int, start: int, stop: int) -> Iterator[tuple[TensorShape, TensorShape]]:
    row = prod(shape[1:])
    yield from (((i, *place), (1, *size)) for place, size in boxes(shape[1:], start - i * row, stop - i * row))


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


def new_queue() -> queue.Queue[Any]:
    """What the next `dist_checkpointing.save` and its writers share."""
    filesystem_async._results_queue = queue.Queue()
    return filesystem_async._results_queue


PATCHES = (
    Patch(
        "optimizer states saved as ranks hold them",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch,
        replaces={
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.sharded_param_state_fully_reshardable": "02bf3a16b587abfa",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.load_parameter_state_from_fully_reshardable": "1708fcba4f9190a0",
        },
    ),
    Patch(
        "progress of loads",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={"megatron/core/dist_checkpointing/strategies/torch.py:MCoreLoadPlanner": "03971bc15361ab06"},
    ),
    Patch(
        "writers in threads",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={
            "megatron/core/dist_checkpointing/strategies/filesystem_async.py:get_write_results_queue": "24346eaf1a219b2c",
            "megatron/core/dist_checkpointing/strategies/filesystem_async.py:FileSystemWriterAsync.write_preloaded_data": "20df91aac0effec6",
        },
    ),
    Patch(
        "records of files",
        "torch",
        VERSIONS["torch"],
        replaces={"torch/distributed/checkpoint/filesystem.py:_write_item": "b0eb5f49a40ce491"},
    ),
)
