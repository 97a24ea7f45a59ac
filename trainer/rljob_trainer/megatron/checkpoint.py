"""Model, optimizer, schedule and random states as a torch_dist directory that any layout can load."""

import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.module import MegatronModule


@dataclass(frozen=True, slots=True)
class State:
    """The live objects that a checkpoint is taken of or put into."""

    module: MegatronModule
    """The model without its wrappers, whose names would get into the file."""
    optimizer: Any
    scheduler: OptimizerParamScheduler
    layout: str


def save(directory: Path, state: State) -> None:
    """Write into `directory`, which must not exist, on a file system that all ranks share. Collective; complete when it returns."""
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    # The writer and its reader are threads of this process. The default queue is served by a process of its own: spawned, it takes 6 to 29 s;
    # forked, it outlives a killed rank and holds the rank's connections open, so that peers wait instead of failing.
    filesystem_async._results_queue = queue.Queue()
    dist_checkpointing.save(_sharded(state, loading=False), str(directory), async_strategy="mcore")
    dist.barrier()


def load(directory: Path, state: State) -> None:
    """Put what `save` wrote into the live objects. Random states are taken only in the same layout. Collective."""
    same_layout = dist_checkpointing.load_common_state_dict(str(directory))["layout"] == state.layout
    wanted = _sharded(state, loading=True)
    if not same_layout:
        del wanted["random"]
    loaded = dist_checkpointing.load(wanted, str(directory))
    state.module.load_state_dict(loaded["model"])
    _keep_settings(loaded["optimizer"], state.optimizer)
    state.optimizer.load_state_dict(loaded["optimizer"])
    state.scheduler.load_state_dict(loaded["scheduler"])
    if same_layout:
        torch.set_rng_state(loaded["random"]["torch"])
        get_cuda_rng_tracker().set_states(loaded["random"]["tracker"])


def _keep_settings(loaded: dict[str, Any], optimizer: Any) -> None:
    """The spec of today has the last word on the optimizer's numbers; megatron would take those of the checkpoint, or, by the learning rate,
    not recognise its parameter groups (distrib_optimizer.py:970). The scheduler sets rate and weight decay."""
    ours = optimizer.param_groups[0]
    for group in loaded["optimizer"]["param_groups"]:
        group.update({key: ours[key] for key in ("max_lr", "min_lr", "betas", "eps")})


def _sharded(state: State, loading: bool) -> dict[str, Any]:
    metadata = {
        "distrib_optim_sharding_type": "fully_reshardable",  # the only one that survives a change of tensor or pipeline size
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
    }
    model = state.module.sharded_state_dict(metadata=metadata)
    return {
        "model": model,
        "optimizer": state.optimizer.sharded_state_dict({"model": model}, is_loading=loading, metadata=metadata),
        "scheduler": state.scheduler.state_dict(),
        "layout": state.layout,
        "random": _random_states(),
    }


def _random_states() -> ShardedObject:
    """One per rank of the model; data-parallel copies share theirs."""
    states = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    shape = (mpu.get_pipeline_model_parallel_world_size(), mpu.get_tensor_model_parallel_world_size())
    place = (mpu.get_pipeline_model_parallel_rank(), mpu.get_tensor_model_parallel_rank())
    return ShardedObject("random", states, shape, place, replica_id=mpu.get_data_parallel_rank())
