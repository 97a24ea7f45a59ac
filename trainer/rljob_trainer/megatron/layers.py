"""Transformer layers in plain torch, under Transformer Engine's class names and with its parameter layout.

megatron-core's extension point for this is `BackendSpecProvider`. Its stock local layers cannot do sequence parallelism
(core/transformer/torch_norm.py:32) or packed sequences (core/transformer/dot_product_attention.py:158). Because names and layout are
Transformer Engine's, checkpoints of a CPU, a GPU with and a GPU without it are the same, and so is what megatron-bridge sees: it tells how
a weight is cut from the name of its module's class.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.moe.experts import GroupedMLPSubmodules, TEGroupedMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import Parameter

from rljob_trainer.megatron.attention import TEDotProductAttention, rotate_packed
from rljob_trainer.megatron.experts import TEColumnParallelGroupedLinear, TERowParallelGroupedLinear

SEQUENCE_PARALLEL = "sequence_parallel"
"""The mark of a parameter by which finalize_model_grads sums its gradient over the ranks among which the sequence is cut."""


def install() -> None:
    """Let `use_transformer_engine=True` mean the classes below where Transformer Engine is absent."""
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs

    if not gpt_layer_specs.HAVE_TE:
        rope_utils._apply_rotary_pos_emb_thd = rotate_packed
        gpt_layer_specs.TESpecProvider = moe_module_specs.TESpecProvider = TorchBackend
        gpt_layer_specs.TENorm = TENorm


def block_spec(config: TransformerConfig, vp_stage: int | None = None) -> Any:
    """The decoder's layers, for `provider.transformer_layer_spec`."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    return get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=vp_stage)


class TENorm(torch.nn.Module):
    """RMSNorm or LayerNorm."""

    def __init__(self, config: TransformerConfig, hidden_size: int, **_: Any) -> None:
        super().__init__()
        self.config = config
        self.weight, self.bias = _norm_parameters(config, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _norm(x, self.weight, self.bias, self.config)


class TELayerNormColumnParallelLinear(ColumnParallelLinear):
    """A norm and the column-parallel matrix that reads it."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.layer_norm_weight, self.layer_norm_bias = _norm_parameters(config, input_size)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(_norm(x, self.layer_norm_weight, self.layer_norm_bias, self.config), *args, **kwargs)


def _norm_parameters(config: TransformerConfig, size: int) -> tuple[Parameter, Parameter | None]:
    first = torch.zeros if config.layernorm_zero_centered_gamma else torch.ones
    weight = Parameter(first(size, dtype=config.params_dtype))
    bias = None if config.normalization == "RMSNorm" else Parameter(torch.zeros(size, dtype=config.params_dtype))
    for p in (weight, bias):
        if p is not None:
            setattr(p, SEQUENCE_PARALLEL, config.sequence_parallel)
    return weight, bias


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: TransformerConfig) -> torch.Tensor:
    gain = weight + 1 if config.layernorm_zero_centered_gamma else weight
    if config.normalization == "RMSNorm" and x.is_cuda:  # one kernel, in float32 inside
        return F.rms_norm(x, x.shape[-1:], gain, config.layernorm_epsilon)
    if config.normalization == "RMSNorm":  # in float32 inside, as Transformer Engine does
        return F.rms_norm(x.float(), x.shape[-1:], gain.float(), config.layernorm_epsilon).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], gain, bias, config.layernorm_epsilon)


class TorchBackend(BackendSpecProvider):
    """What TESpecProvider answers, in plain torch."""

    def linear(self) -> type:
        raise NotImplementedError("multi-latent attention needs Transformer Engine")

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
        """Always grouped: a checkpoint of experts one by one is another one."""
        submodules = GroupedMLPSubmodules(
            linear_fc1=TEColumnParallelGroupedLinear, linear_fc2=TERowParallelGroupedLinear, activation_func=None
        )
        return partial(TEGroupedMLP, submodules=submodules)
