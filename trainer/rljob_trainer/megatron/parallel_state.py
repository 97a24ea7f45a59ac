"""This rank's process groups, and its coordinates in the layout."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from rljob_api.sizing.layout import Layout

SEED = 1234
"""Seed of megatron's random states. Nothing uses them: dropout is 0, and weights come from files."""


@dataclass(frozen=True, slots=True)
class ParallelState:
    """The part of megatron's parallel state that the engine uses."""

    layout: Layout
    data_rank: int
    last_stage: bool
    """This rank has the output layer; losses and log-probabilities exist on such ranks only."""
    reports_metrics: bool
    """Whether this rank contributes to sums over all ranks, to which every token must be added once: tensor rank 0 of the last stage, of each
    data-parallel copy and CP partition."""
    leads_copy: bool
    """Whether this rank speaks for its data-parallel copy: the rank with `reports_metrics` that has the first CP partition."""
    tensor_group: dist.ProcessGroup
    model_group: dist.ProcessGroup
    """Tensor-parallel ranks of all stages, of one CP partition."""
    context_rank: int
    context_group: dist.ProcessGroup
    """The ranks that share this rank's sequences. To be passed explicitly: megatron's functions take None for the whole world."""
    device: torch.device

    def over_context(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the context-parallel ranks, without gradients."""
        if self.layout.context > 1:
            values = values.detach().clone()
            dist.all_reduce(values, group=self.context_group)
        return values

    def over_copy(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of this data-parallel copy, of values in host memory."""
        if self.layout.model == 1:
            return values
        sums = self.over_context(values.to(self.device))
        dist.all_reduce(sums, group=self.model_group)
        return sums.cpu()

    def share(self, block: npt.NDArray[Any]) -> None:
        """Overwrite a block in host memory with that of this copy's first rank. Collective over the copy; on GPUs the bytes travel between them."""
        if self.layout.model == 1:
            return
        held = torch.from_numpy(block.view(np.uint8))
        sent = held.to(self.device)
        if self.layout.context > 1 and dist.get_rank(self.model_group) == 0:
            dist.broadcast(sent, group=self.context_group, group_src=0)
        dist.broadcast(sent, group=self.model_group, group_src=0)
        if sent.is_cuda:
            held.copy_(sent)

    def over_world(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, of values in host memory."""
        sums = values.to(self.device)
        dist.all_reduce(sums)
        return sums.cpu()


def current_device() -> torch.device:
    """This rank's GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def initialize(layout: Layout, device: torch.device, timeout_seconds: float) -> ParallelState:
    """Create megatron's process groups (rank order: tensor, context, data, pipeline; experts: tensor, expert, data, pipeline). Collective.

    `timeout_seconds`: of the collectives in these groups, which do not inherit the default group's timeout.
    """
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        distributed_timeout_minutes=timeout_seconds / 60,  # a fraction is fine: megatron passes it to timedelta
    )
    model_parallel_cuda_manual_seed(SEED)
    last = mpu.is_pipeline_last_stage()
    reports = last and mpu.get_tensor_model_parallel_rank() == 0
    return ParallelState(
        layout=layout,
        data_rank=mpu.get_data_parallel_rank(),
        last_stage=last,
        reports_metrics=reports,
        leads_copy=reports and mpu.get_context_parallel_rank() == 0,
        tensor_group=mpu.get_tensor_model_parallel_group(),
        model_group=mpu.get_model_parallel_group(),
        context_rank=mpu.get_context_parallel_rank(),
        context_group=mpu.get_context_parallel_group(),
        device=device,
    )
