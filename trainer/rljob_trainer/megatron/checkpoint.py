"""Saves and loads networks, optimizers, schedules and random states as a torch_dist directory.

A network that was trained on a gang of its own has a subdirectory of its name, from which any gang can load it. Of a network with adapters only these
are saved, together with the identity of their base model (lora.py).

The format is megatron's `fully_reshardable`: any layout can load it. Every rank writes what it holds, and reads what it will hold, of weights and
of the optimizer's states (compat/core_checkpoints.py). Each layer and each of its experts has tensors of its own: of slices of one tensor torch
compares every one with every other, when it plans a save or a load.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.exchange_utils import determine_main_replica_uniform_distribution
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
    apply_factories,
    is_main_replica,
)
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    distribute_main_replicas_with_precomputed_distribution,
)
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from megatron.core.transformer.module import MegatronModule

from rljob_trainer.checkpoint.staging import Staging
from rljob_trainer.checkpoint.torch_dist import Writing
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.compat.core_checkpoints import IN_PLACE, held, new_queue, replica_of, reporting_reads
from rljob_trainer.megatron.compat.host_adam import HostAdam
from rljob_trainer.megatron.draft.files import FIELD as DRAFT_FIELD
from rljob_trainer.megatron.draft.training import LEARNING_RATE, DraftTraining
from rljob_trainer.megatron.lora import Base, is_adapter, require_same
from rljob_trainer.megatron.memory import Offloader, states, torch_optimizers

THREADS = 8
"""Writer threads of a rank, each with a file of its own, when the loop waits for the save. While training continues there is only one."""

CONTENT = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "singleton_local_shards": True,
    "chained_optim_avoid_prefix": True,
}
"""How tensors are named and cut, in megatron's terms. A checkpoint says its own, for whoever loads it."""


@dataclass(frozen=True, slots=True)
class CheckpointedNetwork:
    """A trained network, with all that a checkpoint saves of it."""

    modules: Sequence[MegatronModule]
    """Its model chunks on this rank, without DDP wrappers, whose names would end up in the file."""
    base: Base | None
    """The base model of its adapters; None: all parameters are trained."""
    optimizer: Any
    """None: the network does not learn. Then it is loaded, and never saved."""
    scheduler: OptimizerParamScheduler | None
    """None: each step brings its own learning rate."""
    offloader: Offloader
    """Parameters and optimizer state must be on the device."""
    draft: DraftTraining | None = None
    """Is trained with it; None: there is none."""

    def storages(self, alongside: bool) -> set[int]:
        """Addresses of the storages that training changes while a save is written. Nothing trains then unless `alongside`, so that states of
        HostAdam, for whose copies the host may have no room, count only there."""
        tensors = [t for m in self.modules for t in (*m.parameters(), *m.buffers())]
        tensors += self.draft.state().values() if self.draft else []
        changing = tensors if self._on_host and not alongside else [*tensors, *states(self.optimizer, set())]
        return {t.untyped_storage().data_ptr() for t in changing}

    @property
    def guesses(self) -> bool:
        """Whether it has a layer for multi-token prediction, which may be on another rank."""
        return bool(getattr(self.modules[0].config, "mtp_num_layers", None))

    @property
    def _on_host(self) -> bool:
        """Optimizer steps are taken there."""
        return any(isinstance(inner, HostAdam) for inner in torch_optimizers(self.optimizer))

    @property
    def copied_bytes(self) -> int:
        """Bytes of what a save copies on this rank. Collective."""
        metadata = _metadata(CONTENT)
        parts = [part for m in self.modules for part in _sharded_module(m, self.base, metadata).values()]
        wholes = {p.data: p for p in parts if isinstance(p, ShardedTensor | ShardedTensorFactory)}
        kept = 0
        for part in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
            main = (span for parameter, span in held(part) if is_main_replica(replica_of(wholes[parameter])))
            kept += _state_bytes(part.config) * sum(map(len, main))
        weights = {i: replace(p, data=_without_numbers(p.data)) for i, p in enumerate(wholes.values())}
        _share_out({0: weights})  # numbers may be offloaded
        own = (t for t in nested_values(weights) if isinstance(t, ShardedTensor) and is_main_replica(t.replica_id))
        return kept + sum(t.data.nbytes for t in own if t.data is not None)


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live objects that a checkpoint is saved from or loaded into."""

    networks: Mapping[str, CheckpointedNetwork]
    """`policy`, and `critic` where there is one."""
    objective: Mapping[str, Any]
    """State of the policy's objective; see Objective.state."""
    layout: str

    def only(self, names: Collection[str]) -> "LiveState":
        """The state with these networks only."""
        return replace(self, networks={name: network for name, network in self.networks.items() if name in names})

    @property
    def copied_bytes(self) -> int:
        """Bytes of what a save copies on this rank. Collective."""
        return sum(network.copied_bytes for network in self.networks.values())


def _state_bytes(config: OptimizerConfig) -> int:
    """Of a parameter's float32 copy and its two moments."""
    return sum(dtype.itemsize for dtype in (torch.float32, config.exp_avg_dtype, config.exp_avg_sq_dtype))


def prepare(state: LiveState, staging: Staging) -> None:
    """Begin to make ready what a save that is written while training continues copies into, unless that was done. Only GPUs need it.
    Collective."""
    if torch.cuda.is_available() and not staging.is_prepared:
        staging.prepare(state.copied_bytes)


def save(directory: Path, state: LiveState, alongside: bool, staging: Staging) -> Writing:
    """Copy the state, and start to write it into `directory`, a new one on a file system that all ranks share. Collective.

    The save is complete once `finish` of the result has returned on every rank. It does not contain what is trained meanwhile. `alongside`: training
    continues, so that fewer threads write.
    """
    if dist.get_rank() == 0:
        directory.mkdir(parents=True)
    dist.barrier()
    common = {
        "content_metadata": CONTENT,
        "layout": state.layout,
        "objective": dict(state.objective),
        "names": sorted(state.networks),
        "drafts": {name: network.draft.identity for name, network in state.networks.items() if network.draft},
        "bases": {name: network.base and network.base.as_json() for name, network in state.networks.items()},
        "multi_token": {name: network.guesses for name, network in state.networks.items()},
    }
    live = set().union(*(network.storages(alongside) for network in state.networks.values()))
    threads = 1 if alongside else THREADS
    sharded = _sharded(state, _metadata(CONTENT, in_place=not alongside), loading=False)
    return Writing(directory, sharded | common, live, staging, threads, new_queue())


def load(directory: Path, state: LiveState, heartbeat: Callable[[], None]) -> dict[str, Any]:
    """Load what `save` wrote into the live objects. Returns the state of the objective. Collective.

    Random states are loaded only in the same layout. `heartbeat` is called for every tensor that this rank has read.

    Raises ConfigurationError when the checkpoint lacks a network, or has adapters of another base model.
    """
    places = {name: _place(directory, name) for name in state.networks}
    objectives = [
        _load(place, state.only({name for name in places if places[name] == place}), heartbeat)
        for place in dict.fromkeys(places.values())
    ]
    return objectives[0]


def objective_of(directory: Path, state: LiveState) -> dict[str, Any]:
    """The state of the objective in what `save` wrote. Raises as `load` does; nothing is loaded."""
    return _common(directory, state)["objective"]


def _place(directory: Path, network: str) -> Path:
    own = directory / network
    return own if own.is_dir() else directory


def _common(directory: Path, state: LiveState) -> dict[str, Any]:
    """What all ranks have in common, if it belongs to the state. Raises ConfigurationError."""
    common: dict[str, Any] = dist_checkpointing.load_common_state_dict(str(directory))
    _require_networks(common["names"], state)
    for name, network in state.networks.items():
        require_same(common["bases"][name], network.base)
        _require_draft(common.get("drafts", {}).get(name), network.draft)
        _require_layer(common.get("multi_token", {}).get(name, network.guesses), network.guesses)
    return common


def _require_layer(saved: bool, wanted: bool) -> None:
    """Raises ConfigurationError when only one of checkpoint and job has a layer for multi-token prediction."""
    if saved != wanted:
        rule = f"the checkpoint holds {'a' if saved else 'no'} layer for multi-token prediction"
        fix = "change it back, or start from the exported model"
        raise ConfigurationError("spec.model.multiTokenPrediction", str(wanted).lower(), rule, fix)


def _require_draft(saved: str | None, draft: DraftTraining | None) -> None:
    """Raises ConfigurationError. `saved`: the identity of the checkpoint's draft; None: it has none."""
    if draft is None:
        if saved is not None:
            rule = "the checkpoint holds a draft that is trained with the policy"
            raise ConfigurationError(LEARNING_RATE, "unset", rule, "set it again, or start from the exported model")
        return
    if saved is None:
        rule = "the checkpoint holds no draft: the job that made it trained none"
        raise ConfigurationError(LEARNING_RATE, "set", rule, "remove it, or start from the exported model")
    if saved != draft.identity:
        rule = "the checkpoint's draft has other tokens, or reads other layers"
        raise ConfigurationError(DRAFT_FIELD, str(draft.directory), rule, "name the draft that the job began with")


def _load(directory: Path, state: LiveState, heartbeat: Callable[[], None]) -> dict[str, Any]:
    common = _common(directory, state)
    wanted = _sharded(state, _metadata(common.get("content_metadata", {})), loading=True)
    same_layout = common["layout"] == state.layout
    if not same_layout:
        del wanted["random"]
    with reporting_reads(heartbeat):
        loaded = dist_checkpointing.load(wanted, str(directory), validate_access_integrity=False)
    for name, network in state.networks.items():
        _put(loaded[name], network)
    if same_layout:
        torch.set_rng_state(loaded["random"]["torch"])
        get_cuda_rng_tracker().set_states(loaded["random"]["tracker"])
    return common["objective"]


def _require_networks(held: list[str], state: LiveState) -> None:
    missing = sorted(set(state.networks) - set(held))
    if missing:
        rule = f"the checkpoint holds {' and '.join(held)} only: the job that made it trained no {missing[0]}"
        fix = "keep the job's networks, or use another spec.checkpoint.path and start from the exported model"
        raise ConfigurationError(f"spec.{missing[0]}", "set", rule, fix)


def _put(loaded: dict[str, Any], network: CheckpointedNetwork) -> None:
    for i, module in enumerate(network.modules):
        module.load_state_dict(loaded["model"][i], strict=network.base is None)
    if network.optimizer:
        _keep_settings(loaded["optimizer"], network.optimizer)
        network.optimizer.load_state_dict(loaded["optimizer"])
    if network.scheduler:
        network.scheduler.load_state_dict(loaded["scheduler"])
    if network.draft:
        for name, tensor in network.draft.state().items():
            tensor.copy_(loaded["draft"][name])


def _keep_settings(loaded: dict[Any, Any], optimizer: Any) -> None:
    """Replace hyperparameters in the loaded optimizer state by those of the current spec. Megatron would use the checkpoint's, or, with another
    learning rate, not match its parameter groups (distrib_optimizer.py:970). The scheduler sets learning rate and weight decay."""
    ours = optimizer.param_groups[0]
    for part in [loaded] if "optimizer" in loaded else loaded.values():  # one each for dense and for expert parameters
        for group in part["optimizer"]["param_groups"]:
            group.update({key: ours[key] for key in ours.keys() - group.keys() - {"params", "step"}})  # of another Adam
            group.update({key: ours[key] for key in ("max_lr", "min_lr", "betas", "eps")})


def _metadata(content: Mapping[str, Any], in_place: bool = False) -> dict[str, Any]:
    """`content`: of the checkpoint. One that does not say how it is cut was cut as megatron-core does by default."""
    ranks = mpu.get_data_parallel_group(with_context_parallel=True)
    alone = content.get("singleton_local_shards", False)
    return {**CONTENT, "singleton_local_shards": alone, IN_PLACE: in_place, "dp_cp_group": ranks}


def _sharded(state: LiveState, metadata: dict[str, Any], loading: bool) -> dict[str, Any]:
    parts = {name: _sharded_network(network, metadata, loading) for name, network in state.networks.items()}
    for name, part in parts.items():
        add_prefix_for_sharding(part, f"{name}.")
    return parts | {"random": _random_states()}


def _sharded_network(network: CheckpointedNetwork, metadata: dict[str, Any], loading: bool) -> dict[str, Any]:
    model = {i: _sharded_module(module, network.base, metadata) for i, module in enumerate(network.modules)}
    optimizer = {}
    if network.optimizer:
        states_of = network.optimizer.sharded_state_dict
        optimizer = {"optimizer": states_of(dict(model), is_loading=loading, metadata=metadata)}
    if not loading:
        _share_out(model)
    schedule = {"scheduler": network.scheduler.state_dict()} if network.scheduler else {}
    draft = {"draft": _sharded_draft(network.draft)} if network.draft else {}
    return {"model": model, **optimizer, **schedule, **draft}


def _sharded_draft(draft: DraftTraining) -> dict[str, ShardedTensor]:
    """All ranks have the same, and the first writes it."""
    rank = dist.get_rank()
    return {
        name: ShardedTensor.from_rank_offsets(f"draft.{name}", tensor, replica_id=rank)
        for name, tensor in draft.state().items()
    }


def _share_out(model: dict[int, Any]) -> None:
    """Of weights that several data-parallel ranks hold, each is written by one of them, and each of them writes about as much. Collective.

    The ranks tell each other what they hold; an expert that no other rank holds is left out.
    """
    ranks = mpu.get_data_parallel_group(with_context_parallel=True)
    alone = mpu.get_expert_data_parallel_world_size() == 1
    names = {i: [n for n, part in parts.items() if not (alone and _is_expert(part.data))] for i, parts in model.items()}
    apply_factories(model)
    held = {i: {name: model[i][name] for name in names[i]} for i in model}
    shares = determine_main_replica_uniform_distribution(held, ranks)
    distribute_main_replicas_with_precomputed_distribution(held, ranks, shares)


def _is_expert(parameter: Any) -> bool:
    return not getattr(parameter, "allreduce", True)


def _without_numbers(parameter: torch.Tensor) -> torch.Tensor:
    empty = torch.empty_like(parameter, device="meta")
    empty.allreduce = not _is_expert(parameter)  # type: ignore[attr-defined]
    return empty


def _sharded_module(module: MegatronModule, base: Base | None, metadata: dict[str, Any]) -> dict[str, Any]:
    sharded = module.sharded_state_dict(metadata=metadata)
    return {name: part for name, part in sharded.items() if base is None or is_adapter(name)}


def _random_states() -> ShardedObject:
    """Random states, one for each model-parallel rank; data-parallel and context-parallel replicas share them."""
    states = {"torch": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    shape = (mpu.get_pipeline_model_parallel_world_size(), mpu.get_tensor_model_parallel_world_size())
    place = (mpu.get_pipeline_model_parallel_rank(), mpu.get_tensor_model_parallel_rank())
    return ShardedObject(
        "random", states, shape, place, replica_id=mpu.get_data_parallel_rank(with_context_parallel=True)
    )
