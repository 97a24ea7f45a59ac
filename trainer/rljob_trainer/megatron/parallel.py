"""This rank's place in the layout."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from rljob_api.layout import Layout

SEED = 1234
"""Of megatron's random states. Nothing draws from them: dropout is 0 and weights come from files."""


@dataclass(frozen=True, slots=True)
class Place:
    """What the passes need to know of the process groups."""

    layout: Layout
    data_rank: int
    last_stage: bool
    """Holds the output layer: losses and log-probabilities exist here only."""
    speaks: bool
    """One rank of each data-parallel copy adds to sums over the world: tensor rank 0 of the last stage."""
    tensor_group: dist.ProcessGroup
    device: torch.device


def start(layout: Layout, device: torch.device) -> Place:
    """Cut the world into megatron's groups (rank order: tensor, then data, then pipeline). Collective."""
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor, pipeline_model_parallel_size=layout.pipeline
    )
    model_parallel_cuda_manual_seed(SEED)
    last = mpu.is_pipeline_last_stage()
    return Place(
        layout=layout,
        data_rank=mpu.get_data_parallel_rank(),
        last_stage=last,
        speaks=last and mpu.get_tensor_model_parallel_rank() == 0,
        tensor_group=mpu.get_tensor_model_parallel_group(),
        device=device,
    )
