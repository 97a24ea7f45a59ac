"""A model of plain torch layers (plain_torch/layers.py), made to compute with vLLM's kernels."""

from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.module import MegatronModule

from rljob_trainer.megatron.context_parallel import boundaries, positions
from rljob_trainer.megatron.exact import functions
from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention
from rljob_trainer.megatron.plain_torch.layers import TELayerNormColumnParallelLinear, TENorm


class ExactAttention(MegatronModule):
    """Rotation and attention of packed sequences, in place of megatron-core's rotation and of `formula`, which gives the gradient."""

    def __init__(self, formula: TEDotProductAttention, kernels: ModuleType, rope: Any) -> None:
        super().__init__(config=formula.config)
        self.formula: Any = formula
        self.kernels, self.rope = kernels, rope

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Any, **__: Any
    ) -> torch.Tensor:
        """query [t, heads, d], key and value [t, groups, d] -> [t, heads * d]"""
        starts = boundaries(packed_seq_params.cu_seqlens_q)
        places = positions(starts, 1, 0, query.device)
        query, key = functions.rotate(self.kernels, places, query, key, self.rope)
        formula = partial(self.formula, packed_seq_params=packed_seq_params)
        return functions.attend(self.kernels, formula, starts, self.formula.scale, query, key, value)


def install(modules: Iterable[MegatronModule], kernels: ModuleType, rope: Any) -> None:
    """Make every operation of these models of one stage vLLM's. They rotate in ExactAttention."""
    for module in modules:
        model: Any = module
        model.position_embedding_type = "none"
        model.config.use_te_activation_func = True  # MLP then calls its own function, for gate and value at once
        for layer in model.decoder.layers:
            attention = layer.self_attention
            attention.core_attention = ExactAttention(attention.core_attention, kernels, rope)
        for part in model.modules():
            _install(part, kernels)
        model.decoder.layers[0].self_attention.linear_qkv.normalise = _norm(kernels, of_sum=False)


def _install(part: Any, kernels: ModuleType) -> None:
    if isinstance(part, ColumnParallelLinear | RowParallelLinear):
        part._forward_impl = partial(_linear, kernels)
    if isinstance(part, TELayerNormColumnParallelLinear | TENorm):
        part.normalise = _norm(kernels, of_sum=True)
    if isinstance(part, MLP):
        part.activation_func = partial(functions.silu_and_mul, kernels)
    for name in ("q_layernorm", "k_layernorm"):
        if getattr(part, name, None) is not None:
            getattr(part, name).normalise = _norm(kernels, of_sum=False)


def _linear(
    kernels: ModuleType, *, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **_: Any
) -> torch.Tensor:
    return functions.linear(kernels, input, weight, bias)


def _norm(kernels: ModuleType, of_sum: bool) -> Any:
    """In place of plain_torch.layers.normalised."""

    def norm(x: torch.Tensor, weight: torch.Tensor, _bias: None, _config: Any, eps: float) -> torch.Tensor:
        return functions.rms_norm(kernels, x, weight, eps, of_sum)

    return norm
