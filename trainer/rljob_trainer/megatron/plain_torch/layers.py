"""Transformer layers in plain torch, under Transformer Engine's class names and with its parameter layout.

They are plugged in through megatron-core's `BackendSpecProvider`. Its own local layers support neither sequence parallelism
(core/transformer/torch_norm.py:32) nor packed sequences (core/transformer/dot_product_attention.py:158). With Transformer Engine's names and
parameter layout, checkpoints are the same with and without it, on CPU and GPU, and megatron-bridge works unchanged: it infers how a weight is
sharded from the name of its module's class.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn import Parameter

from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention

SEQUENCE_PARALLEL = "sequence_parallel"
"""Parameter attribute that tells finalize_model_grads to sum the gradient over the sequence-parallel ranks."""


def block_spec(config: TransformerConfig, vp_stage: int | None = None) -> Any:
    """Spec of the decoder's layers, for `provider.transformer_layer_spec`: these layers, also where Transformer Engine is installed."""
    from megatron.core.models.gpt import gpt_layer_specs

    chosen = {"TESpecProvider": TorchBackend, "TENorm": TENorm}
    others = {name: getattr(gpt_layer_specs, name) for name in chosen}
    try:
        for name, layer in chosen.items():
            setattr(gpt_layer_specs, name, layer)
        return gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=vp_stage)
    finally:
        for name, layer in others.items():
            setattr(gpt_layer_specs, name, layer)


class TENorm(torch.nn.Module):
    """RMSNorm or LayerNorm."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float | None = None, **_: Any) -> None:
        """`eps`: in place of the configuration's."""
        super().__init__()
        self.config, self.eps = config, config.layernorm_epsilon if eps is None else eps
        self.weight, self.bias = _norm_parameters(config, hidden_size)
        self.normalise = normalised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalise(x, self.weight, self.bias, self.config, self.eps)


class TELayerNormColumnParallelLinear(ColumnParallelLinear):
    """A norm followed by a column-parallel matrix."""

    return_layernorm_output = False
    """Also return the output of the norm, for an adapter that reads the same input as the matrix."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm_weight, self.layer_norm_bias = _norm_parameters(config, input_size)
        self.normalise = normalised

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        config = self.config
        normed = self.normalise(x, self.layer_norm_weight, self.layer_norm_bias, config, config.layernorm_epsilon)
        output, bias = super().forward(normed, *args, **kwargs)
        return ((output, normed) if self.return_layernorm_output else output), bias


def _norm_parameters(config: TransformerConfig, size: int) -> tuple[Parameter, Parameter | None]:
    first = torch.zeros if config.layernorm_zero_centered_gamma else torch.ones
    weight = Parameter(first(size, dtype=config.params_dtype))
    bias = None if config.normalization == "RMSNorm" else Parameter(torch.zeros(size, dtype=config.params_dtype))
    for p in (weight, bias):
        if p is not None:
            setattr(p, SEQUENCE_PARALLEL, config.sequence_parallel)
    return weight, bias


def normalised(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: TransformerConfig, eps: float
) -> torch.Tensor:
    gain = weight + 1 if config.layernorm_zero_centered_gamma else weight
    if config.normalization == "RMSNorm" and x.is_cuda:  # one kernel, in float32 inside
        return F.rms_norm(x, x.shape[-1:], gain, eps)
    if config.normalization == "RMSNorm":  # in float32 inside, as Transformer Engine does
        return F.rms_norm(x.float(), x.shape[-1:], gain.float(), eps).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], gain, bias, eps)


class TELinear(torch.nn.Module):
    """A matrix that is replicated on every tensor-parallel rank and applied to its own tokens: the down-projections of multi-latent attention."""

    parallel_mode = "duplicated"

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, bias: bool, parallel_mode: str, **_: Any
    ) -> None:
        super().__init__()
        if bias or parallel_mode != self.parallel_mode:
            raise NotImplementedError(f"a {parallel_mode} matrix with bias={bias} needs Transformer Engine")
        self.weight = Parameter(
            torch.empty(output_size, input_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        )
        setattr(self.weight, SEQUENCE_PARALLEL, config.sequence_parallel)
        config.init_method(self.weight)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        """x [..., in] -> [..., out], and None for a bias to be added later."""
        return F.linear(x, self.weight), None


class _GroupedLinear(MegatronModule):
    """The matrices of a rank's experts: weight0, weight1, ... [out, in], each applied to the tokens of its expert; in some models also biases bias0,
    bias1, ... [out]. The token dispatcher does all communication."""

    cut: int
    """The dimension that is sharded over expert-tensor-parallel ranks."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        bias: bool,
        skip_bias_add: bool,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.groups, self.count, self.skips = pg_collection, num_gemms, skip_bias_add
        self.kinds = ("weight", "bias") if bias else ("weight",)
        if bias and pg_collection.expt_tp.size() > 1:
            raise NotImplementedError("experts with biases are not cut")
        shape = [output_size, input_size]
        shape[self.cut] //= pg_collection.expt_tp.size()
        for i in range(num_gemms):
            for kind, size in zip(self.kinds, (shape, shape[:1]), strict=False):
                tensor = Parameter(torch.zeros(size, dtype=config.params_dtype, device=torch.cuda.current_device()))
                set_tensor_model_parallel_attributes(tensor, kind == "weight", self.cut, 1)
                setattr(self, f"{kind}{i}", tensor)

    def forward(self, x: torch.Tensor, m_splits: list[int]) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
        """x [t, in], sorted by expert, `m_splits` tokens each -> [t, out], and the biases if the caller adds them (skip_bias_add)."""
        biases = [getattr(self, f"bias{i}", None) for i in range(self.count)]
        added = [None] * self.count if self.skips else biases
        parts = zip(x.split(m_splits), added, strict=True)
        out = torch.cat([F.linear(part, getattr(self, f"weight{i}"), bias) for i, (part, bias) in enumerate(parts)])
        return out, [b for b in biases if b is not None] if self.skips and "bias" in self.kinds else None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """In a checkpoint all experts of a layer are one tensor [experts, out, in] (like core/extensions/transformer_engine.py, TEGroupedLinear)."""
        metadata = metadata or {}
        first, total = self.groups.ep.rank() * self.count, self.groups.ep.size() * self.count
        alone, sharded = metadata.get("singleton_local_shards", False), {}
        for i in range(self.count):
            offsets = sharded_offsets if alone else (*sharded_offsets, (len(sharded_offsets), first + i, total))
            part = make_sharded_tensors_for_checkpoint(
                {f"{i}.{kind}": getattr(self, f"{kind}{i}") for kind in self.kinds},
                "",
                {f"{i}.weight": self.cut},
                offsets,
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            replace_prefix_for_sharding(part, f"{i}.", f"{first + i}.{prefix}" if alone else prefix)
            for kind in self.kinds:
                tensor = part[f"{i}.{kind}"]
                tensor.replica_id = (*tensor.replica_id[:2], self.groups.expt_dp.rank())
                sharded[f"{prefix}{kind}{i}"] = tensor
        return sharded


class TEColumnParallelGroupedLinear(_GroupedLinear):
    """Sharded along the outputs."""

    cut = 0


class TERowParallelGroupedLinear(_GroupedLinear):
    """Sharded along the inputs."""

    cut = 1


class TorchBackend(BackendSpecProvider):
    """The counterpart of TESpecProvider in plain torch."""

    def linear(self) -> type:
        return TELinear

    def column_parallel_linear(self) -> type:
        return ColumnParallelLinear

    def row_parallel_linear(self) -> type:
        return RowParallelLinear

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        return TELayerNormColumnParallelLinear

    def layer_norm(self, *_: Any, **__: Any) -> type:
        return TENorm

    def core_attention(self) -> type:
        return TEDotProductAttention

    def activation_func(self) -> None:
        return None

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Any:
        """Always grouped: a checkpoint of separate experts has another format."""
        submodules = GroupedMLPSubmodules(
            linear_fc1=TEColumnParallelGroupedLinear, linear_fc2=TERowParallelGroupedLinear, activation_func=None
        )
        return partial(TEGroupedMLP, submodules=submodules)


def mark_expert_parameters(module: torch.nn.Module) -> None:
    """Set `allreduce = False` on experts' parameters even without expert parallelism. DDP then gives them buffers of their own, so that their
    optimizer state has the same format for every expert-parallel size and can be resharded (core/optimizer/distrib_optimizer.py:962)."""
    for name, parameter in module.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False  # type: ignore[attr-defined]
