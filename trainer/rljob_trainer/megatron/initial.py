"""Weights from a torch_dist directory of megatron-core, ours or another's, in any layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from megatron.core.transformer.module import MegatronModule

from rljob_trainer.checkpoint.manifest import engine_directory
from rljob_trainer.failure import ConfigurationError

FIELD = "spec.model.megatronCheckpoint"
_PREFIXES = ("policy.", "")
"""Of the names of tensors: ours, and plain megatron's."""


def load_weights(path: str, modules: Sequence[MegatronModule]) -> None:
    """Put the weights under `path` into the pieces of this rank's stage. Every rank reads its own shards only. Collective.

    `path` is a torch_dist directory, or holds one as our `global_step_N` do, in either format: they differ in the optimizer.
    Raises ConfigurationError when it is none, or its tensors are not those of the model.
    """
    places = (*(Path(path) / engine_directory(reshardable) for reshardable in (True, False)), Path(path))
    directory = next((d for d in places if (d / ".metadata").is_file()), None)
    if directory is None:
        fix = "name a directory such as global_step_100 of another job"
        raise ConfigurationError(FIELD, path, "is no torch_dist directory of megatron-core, nor holds one", fix)
    try:
        held = dist_checkpointing.load_tensors_metadata(str(directory))
    except CheckpointingException as error:
        raise ConfigurationError(FIELD, path, f"cannot be read: {error}", "name a complete checkpoint") from error
    prefix = next((p for p in _PREFIXES if any(key.startswith(f"{p}decoder.") for key in held)), "")
    wanted = {i: _tensors(module, prefix) for i, module in enumerate(modules)}
    for tensors in wanted.values():
        _require(held, tensors, path)
    loaded = dist_checkpointing.load(dict(wanted), str(directory), validate_access_integrity=False)
    for i, module in enumerate(modules):
        rest = module.load_state_dict(loaded[i], strict=False)  # Transformer Engine's extra states are not weights
        if lost := [key for key in rest.missing_keys if not key.endswith("_extra_state")]:
            raise ConfigurationError(FIELD, path, f"does not hold {lost[0]}", "name a checkpoint of the same model")


def _tensors(module: MegatronModule, prefix: str) -> dict[str, Any]:
    metadata = {
        "singleton_local_shards": False,
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
    }
    found = {k: v for k, v in module.sharded_state_dict(metadata=metadata).items() if not k.endswith("_extra_state")}
    add_prefix_for_sharding(found, prefix)
    return found


def _require(held: dict[str, ShardedTensor], tensors: dict[str, Any], path: str) -> None:
    for tensor in tensors.values():
        if not isinstance(tensor, ShardedTensor):  # a factory: megatron cuts it into several when it loads
            continue
        if tensor.key not in held:
            rule = f"does not hold {tensor.key}"
        elif held[tensor.key].global_shape != tensor.global_shape:
            rule = f"{tensor.key} has the shape {tuple(held[tensor.key].global_shape)}, the model's {tuple(tensor.global_shape)}"
        else:
            continue
        raise ConfigurationError(FIELD, path, rule, "name a checkpoint of the same model, or remove it")
