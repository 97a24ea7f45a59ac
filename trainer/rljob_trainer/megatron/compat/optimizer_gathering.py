"""An optimizer's state gathered over its data-parallel ranks, in host memory: what a checkpoint of any layout is made of.

megatron-core (core/optimizer/distrib_optimizer.py:1334-1391) takes every number from the device to the host, back to the device, over the
ranks, to the host again, and copies it there twice, through memory that is fresh each time, where page faults cost more than the copies: 121 s
for the 18.5 GB of a 1.5 B model on an H200. Here the ranks gather in the gradient buffers: float32 (grad_reduce_in_fp32), laid out like the
state, on the device, and not in use between steps. Then one copy goes to the host.

It also fixes a fault. `sharded_param_state_fully_reshardable` cuts parameters out at their places in the padded buffer (:1755), from a tensor
whose buckets megatron has put together without their padding (:1384): wherever the end of a bucket was padded, all parameters after it got
their neighbours' numbers (fixed upstream by NVIDIA/Megatron-LM#5077, after 0.19.2). Here the padding between buckets stays.

Can go when upstream gathers on the device; the fault alone is gone with the release that holds #5077.
"""

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

PIECE = 2**23
"""Numbers that are copied at a time: 32 MiB."""
THREADS = 8
"""That copy."""


def _patch() -> None:
    """Takes the place of megatron's method where a checkpoint of any layout is saved; loading and other formats keep it."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    original = DistributedOptimizer.get_parameter_state_dp_zero

    @functools.wraps(original)
    def get_state(
        self: Any, use_gloo_comm: bool = True, empty_data: bool = False, return_on_all_ranks: bool = False
    ) -> Any:
        if use_gloo_comm or empty_data or not return_on_all_ranks:
            return original(self, use_gloo_comm, empty_data, return_on_all_ranks)
        return gathered(self)

    DistributedOptimizer.get_parameter_state_dp_zero = get_state


@torch.no_grad()
def gathered(optimizer: Any) -> dict[Any, Any]:
    """What `get_parameter_state_dp_zero(use_gloo_comm=False, return_on_all_ranks=True)` of a DistributedOptimizer returns: per buffer float32
    tensors [end of the last parameter] of "param" and each of `optimizer_state_keys`, on the host.

    Gradient buffers must be on the device; they are zero afterwards. Collective over the optimizer's data-parallel group.
    """
    state: dict[Any, Any] = {"buckets_coalesced": True}
    for i, (buffer, ranges) in enumerate(zip(optimizer.buffers, optimizer.gbuf_ranges, strict=True)):
        [(dtype, buckets)] = ranges.items()
        assert buffer.grad_data.dtype == torch.float32, "gradients are reduced in float32"
        buffer.grad_data.zero_()  # padding stays so
        tensors = {key: _whole(optimizer, buffer, buckets, key) for key in ("param", *optimizer.optimizer_state_keys)}
        buffer.grad_data.zero_()
        state[i] = {dtype: tensors | {"numel_unpadded": buffer.numel_unpadded}}
    return state


def separate(sharded: dict[Any, Any]) -> None:
    """Give each tensor that was cut out of a gathered one a storage of its own, of the same memory: megatron copies views before it writes them
    (dist_checkpointing/strategies/filesystem_async.py:153). For saving only: pieces of parameters cannot be merged again."""
    apply_factories(sharded)
    for part in nested_values(sharded):
        if isinstance(part, ShardedTensor) and part.data.is_contiguous():
            part.data = torch.from_numpy(part.data.numpy())


def _whole(optimizer: Any, buffer: Any, ranges: list[dict[str, Any]], key: str) -> torch.Tensor:
    for bucket, of_bucket in zip(buffer.buckets, ranges, strict=True):
        _gather(optimizer, bucket.grad_data, of_bucket["param_map"], key)
    last = buffer.buckets[-1]
    return on_host(buffer.grad_data[: last.offset + last.numel_unpadded])


def _gather(optimizer: Any, bucket: torch.Tensor, parameters: dict[Any, Any], key: str) -> None:
    """Fill a bucket [numel] with all ranks' parts of what they keep under `key`."""
    group = optimizer.data_parallel_group
    mine = bucket.chunk(group.size())[group.rank()]
    for parameter, ranges in parameters.items():
        place = ranges["gbuf_local"]
        mine[place.start : place.end].copy_(optimizer._get_main_param_and_optimizer_states(parameter)[key].view(-1))
    if group.size() > 1:
        dist.all_gather_into_tensor(bucket, mine, group=group)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor [n] in memory of its own, complete when this returns."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    if tensor.is_cuda:
        copy_in_pieces(tensor, host)
    else:
        host.copy_(tensor)
    return host


def copy_in_pieces(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Through pinned memory, into which a device copies many times faster; from there in threads, which take page faults side by side."""
    rooms = [torch.empty(PIECE, dtype=tensor.dtype, pin_memory=torch.cuda.is_available()) for _ in range(THREADS)]
    busy: list[Future[Any] | None] = [None] * THREADS
    with ThreadPoolExecutor(THREADS) as pool:
        for i, (piece, to) in enumerate(zip(tensor.split(PIECE), host.split(PIECE), strict=True)):
            if before := busy[i % THREADS]:
                before.result()
            room = rooms[i % THREADS][: piece.numel()].copy_(piece)  # waits for the device
            busy[i % THREADS] = pool.submit(to.copy_, room)
    for copy in filter(None, busy):
        copy.result()


PATCHES = (
    Patch(
        "optimizer states gathered on the device",
        "megatron-core",
        VERSIONS["megatron-core"],
        _patch,
        replaces={
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.get_parameter_state_dp_zero": "935c5598e1d345d2",
            "megatron/core/optimizer/distrib_optimizer.py:DistributedOptimizer.sharded_param_state_fully_reshardable": "02bf3a16b587abfa",
        },
    ),
)
