"""On CPU the data-parallel copies of a server exchange tokens, and a worker computes with those experts that it holds.

vLLM 0.32 has neither: its communicator for CPUs lacks two calls, and its kernel takes no `expert_map`, so that it looks for all experts of the model
in the memory of a part of them. Can go when `CpuCommunicator` has the two calls, and `cpu_fused_moe` takes the map.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.forked_engine import on_cpu


def spread_experts() -> None:
    """Add what is missing."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    compute = CPUUnquantizedExperts.apply

    def apply(experts: Any, **named: Any) -> None:
        if (own := named["expert_map"]) is not None:
            named["topk_ids"], named["topk_weights"] = held(named["topk_ids"], named["topk_weights"], own)
        compute(experts, **named)

    CPUUnquantizedExperts.apply = apply
    CpuCommunicator.all_gatherv, CpuCommunicator.reduce_scatterv = all_gatherv, reduce_scatterv


def held(ids: Tensor, weights: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen experts as this worker numbers its own, and their weights, which are 0 for those of other workers.

    Args:
        ids: [tokens, experts of a token]
        weights: the same shape
        own: [experts of the model] -> the number here, or -1
    """
    here = own[ids.long()].to(ids.dtype)
    return here.clamp(min=0), weights.masked_fill(here < 0, 0)


def all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """Of a tensor, or of each in a list: those of all ranks along the first dimension, of which rank i has sizes[i]."""
    if isinstance(input_, list):
        return [all_gatherv(self, one, dim, sizes) for one in input_]
    assert dim == 0, "copies exchange tokens"
    sizes = sizes or [len(input_)] * self.world_size
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
    padded[: len(input_)] = input_
    found = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(found, padded, group=self.device_group)
    return torch.cat([one[:size] for one, size in zip(found, sizes, strict=True)])


def reduce_scatterv(self: Any, input_: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
    """This rank's part of the sum over all ranks, sizes[rank] along the first dimension."""
    assert dim == 0, "copies exchange tokens"
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    whole = input_.contiguous().clone()
    distributed.all_reduce(whole, group=self.device_group)  # gloo has no reduce_scatter
    return whole.split(list(sizes))[self.rank_in_group].clone()


PATCHES = (
    Patch(
        "experts that are spread on CPU",
        "vllm",
        VERSIONS,
        apply=spread_experts,
        needed=on_cpu,
        replaces={
            "vllm/model_executor/layers/fused_moe/experts/cpu_moe.py:CPUUnquantizedExperts.apply": "eee74f4dd323eb40",
            "vllm/distributed/device_communicators/base_device_communicator.py:DeviceCommunicatorBase.all_gatherv": "2d0afc5afea99565",
            "vllm/distributed/device_communicators/base_device_communicator.py:DeviceCommunicatorBase.reduce_scatterv": "fbd25585b49e4f00",
            "vllm/distributed/device_communicators/cpu_communicator.py:CpuCommunicator.__init__": "e03f5e49438691c6",
            "vllm/distributed/device_communicators/all2all.py:AgRsAll2AllManager.dispatch": "a775033c5ab2071c",
        },
    ),
)
