"""The policy as a megatron model: loaded from a Hugging Face directory or a Megatron checkpoint, sharded for this rank."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.module import Float16Module, MegatronModule

from rljob_api.rules.lora import settled
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.manifest import ENGINE
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.constants import constants
from rljob_trainer.megatron.exact import functions
from rljob_trainer.megatron.exact import model as exact_model
from rljob_trainer.megatron.export import Exporter
from rljob_trainer.megatron.lora import Adapters, Base
from rljob_trainer.megatron.lora_parts import as_in_files
from rljob_trainer.megatron.multi_token import LAYERS, MultiTokenLoss
from rljob_trainer.megatron.ownership import Ownership
from rljob_trainer.megatron.parallel_state import ParallelState
from rljob_trainer.megatron.plain_torch.layers import mark_expert_parameters
from rljob_trainer.megatron.provider import configure, open_bridge, provide
from rljob_trainer.wire.weights.plan import GatherPhase

CHECKPOINT = "spec.model.megatronCheckpoint"


class PolicyModel:
    """A language model; see network.TrainedModel."""

    def __init__(self, spec: RLJobSpec, parallel: ParallelState) -> None:
        self.bridge, self._path = open_bridge(spec), spec.model.path
        self._checkpoint = checkpoint = spec.model.megatron_checkpoint
        self.config: Any = self.bridge.to_megatron_provider(load_weights=checkpoint is None)
        configure(self.config, spec, parallel.layout, spec.model.multi_token_prediction)
        self.modules = provide(self.config, parallel)
        """See `provide`."""
        self.constants = constants(self.config)
        """Before training sets anything in its configuration."""
        self.exact: ModuleType | None = None
        if spec.rollout.exact:
            self.exact = functions.kernels(parallel.device)
            hugging_face, dtype = self.bridge.hf_pretrained.config, self.config.params_dtype
            exact_model.install(self.modules, self.exact, functions.rotation(hugging_face, dtype, parallel.device))
        if checkpoint is None:
            require_all_weights(self.bridge, self.modules, "spec.model.path", spec.model.path)
        else:
            load_weights(checkpoint, self.modules)
        self.vocabulary: int | None = self.config.vocab_size
        self.multi_token: MultiTokenLoss | None = None
        if spec.model.multi_token_prediction:
            self.multi_token = MultiTokenLoss(self.config.vocab_size, parallel.device)
            self.config.multi_token = self.multi_token  # where its pass finds it: compat/core_layers.py
        self._exporter = Exporter(self.bridge, self.modules, self.config)
        self.adapters: Adapters | None = None
        if spec.model.lora:
            self._exporter.prepare()
            config = self.bridge.hf_pretrained.config.to_dict()
            lora = settled(spec.model.lora, config)
            self.adapters = Adapters(lora, config, spec.data.seed, self.modules, self._exporter.tasks)

    def reload(self) -> None:
        """Put back the weights that the model had at first. Collective."""
        if self._checkpoint is None:
            self.bridge.load_hf_weights(self.modules)
        else:
            load_weights(self._checkpoint, self.modules)

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._exporter.tensors(self.adapters.merged) if self.adapters else self._exporter.tensors()

    def export_owned(self, own: Ownership | None = None) -> list[GatherPhase]:
        """See Exporter.owned."""
        return self._exporter.owned(self.adapters.merged, own) if self.adapters else self._exporter.owned(own=own)

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields `....q_proj.lora_A.weight` [rank, in] and `....lora_B.weight` [out, rank], unsharded, on every rank. Collective, like `export`."""
        for name, tensor in self.bridge.export_adapter_weights(self.modules, cpu=False, show_progress=False):
            yield name, as_in_files(name, tensor, self.config)

    @cached_property
    def base(self) -> Base | None:
        return Base.of(self._path, self.adapters.settings, self._exporter.tensors()) if self.adapters else None

    def hugging_face_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """A layer for multi-token prediction that is not trained is not exported."""
        return config | ({LAYERS: 0} if config.get(LAYERS) and not self.multi_token else {})


def require_all_weights(
    bridge: AutoBridge, modules: list[MegatronModule], field: str, path: str, but: str = ""
) -> None:
    """Raise ConfigurationError when the model directory lacks a tensor. megatron-bridge only warns (model_bridge.py, build_conversion_tasks), and
    leaves the parameter uninitialized.

    `but`: a parameter that may be missing.
    """
    held = set(bridge.hf_pretrained.state.source.get_all_keys())
    wanted = [t.mapping.hf_param for t in bridge.get_conversion_tasks(modules) if t.global_param_name != but]
    names = {name for w in wanted for name in ([w] if isinstance(w, str) else w.values())}
    missing = sorted(names - held)
    if missing:
        rule = f"{len(missing)} tensors are missing in its safetensors files, for example {missing[0]}"
        raise ConfigurationError(field, path, rule, "copy the whole model directory")


def freeze(modules: Sequence[MegatronModule], config: Any) -> list[torch.nn.Module]:
    """Freeze the modules; returns them wrapped for forward passes in the model's dtype."""
    for module in modules:
        module.requires_grad_(False)
    return [_in_model_dtype(m, config) for m in modules]


def _in_model_dtype(module: MegatronModule, config: Any) -> torch.nn.Module:
    """The module in megatron's bfloat16 wrapper, if the model is bfloat16. The wrapper would round the routers' expert biases, buffers that are
    float32 in checkpoints, so they are restored."""
    if not config.bf16:
        return module
    biases = [(r, r.expert_bias.clone()) for r in module.modules() if getattr(r, "expert_bias", None) is not None]
    wrapped = Float16Module(config, module)
    for router, bias in biases:
        router.expert_bias.data = bias
    return wrapped


def wrap(modules: Sequence[MegatronModule], config: Any, spec: RLJobSpec) -> list[DistributedDataParallel]:
    """Wrap the modules in DDP, with gradient buffers for the distributed optimizer. Sets the hooks for overlapped communication in `config`."""
    overlap = spec.trainer.overlap
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=overlap.grad_reduce,
        overlap_param_gather=overlap.param_gather,
    )
    for module in modules:
        mark_expert_parameters(module)
    whole = [_in_model_dtype(m, config) for m in modules]
    chunks = [DistributedDataParallel(config, ddp, m, disable_bucketing=i > 0) for i, m in enumerate(whole)]
    if overlap.grad_reduce:
        _schedule(config, "no_sync_func", [c.no_sync for c in chunks])
        _schedule(config, "grad_sync_func", [c.start_grad_sync for c in chunks])
    if overlap.param_gather:
        _schedule(config, "param_sync_func", [c.start_param_sync for c in chunks])
    return chunks


def _schedule(config: Any, name: str, functions: list[Any]) -> None:
    setattr(config, name, functions if len(functions) > 1 else functions[0])


def finish_updates(chunks: Sequence[DistributedDataParallel]) -> None:
    """All-gather parameters that overlapping has postponed to the next forward pass. Must be called before they are read otherwise. Collective."""
    with torch.no_grad():
        for chunk in chunks:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)


def load_weights(
    path: str, modules: Sequence[MegatronModule], network: str = "policy", field: str = CHECKPOINT
) -> None:
    """Load the weights under `path` into the model chunks of this rank's stage. Every rank reads its own shards only. Collective.

    `path` is a torch_dist directory, or contains one as `global_step_N` does, in either format (they differ in the optimizer only). `network`: which
    network to load; if the checkpoint has no such network, the policy, or the only one of a checkpoint written by Megatron-LM.
    Raises ConfigurationError, of `field`, when there is none, or its tensors do not match the model.
    """
    directory = _torch_dist(Path(path), network)
    if directory is None:
        fix = "name a directory such as global_step_100 of another job"
        raise ConfigurationError(field, path, "is no torch_dist directory of megatron-core, nor holds one", fix)
    try:
        held = dist_checkpointing.load_tensors_metadata(str(directory))
        content = dist_checkpointing.load_content_metadata(str(directory)) or {}
    except CheckpointingException as error:
        raise ConfigurationError(field, path, f"cannot be read: {error}", "name a complete checkpoint") from error
    prefixes = (f"{network}.", "policy.")
    prefix = next((p for p in prefixes if any(key.startswith(f"{p}decoder.") for key in held)), "")
    wanted = {i: _tensors(module, prefix, content) for i, module in enumerate(modules)}
    for tensors in wanted.values():
        _require(held, tensors, path, field)
    loaded = dist_checkpointing.load(dict(wanted), str(directory), validate_access_integrity=False)
    for i, module in enumerate(modules):
        rest = module.load_state_dict(loaded[i], strict=False)  # Transformer Engine's extra states are not weights
        lost = [key for key in rest.missing_keys if not key.endswith("_extra_state")]
        if lost:
            raise ConfigurationError(field, path, f"does not hold {lost[0]}", "name a checkpoint of the same model")


def _torch_dist(path: Path, network: str) -> Path | None:
    """The torch_dist directory under `path`; None: there is none. A network that was trained on a gang of its own has a subdirectory."""
    places = (path / ENGINE / network, path / ENGINE, path)
    return next((d for d in places if (d / ".metadata").is_file()), None)


def _tensors(module: MegatronModule, prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """By the names of the checkpoint: RLJob's has a tensor of each expert, Megatron-LM's one of all layers' experts."""
    metadata = {
        "singleton_local_shards": content.get("singleton_local_shards", False),
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
    }
    tensors = {k: v for k, v in module.sharded_state_dict(metadata=metadata).items() if not k.endswith("_extra_state")}
    add_prefix_for_sharding(tensors, prefix)
    return tensors


def _require(held: dict[str, ShardedTensor], tensors: dict[str, Any], path: str, field: str) -> None:
    for tensor in tensors.values():
        if not isinstance(tensor, ShardedTensor):  # a ShardedTensorFactory, which megatron splits when it loads
            continue
        if tensor.key not in held:
            rule = f"does not hold {tensor.key}"
        elif held[tensor.key].global_shape != tensor.global_shape:
            rule = f"{tensor.key} has the shape {tuple(held[tensor.key].global_shape)}, the model's {tuple(tensor.global_shape)}"
        else:
            continue
        raise ConfigurationError(field, path, rule, "name a checkpoint of the same model, or remove it")
