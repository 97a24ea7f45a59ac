"""Transformer layers in plain torch, under Transformer Engine's class names and with its parameter layout.

megatron-core's extension point for this is `BackendSpecProvider`. Its stock local layers cannot do sequence parallelism
(core/transformer/torch_norm.py:32) or packed sequences (core/transformer/dot_product_attention.py:158). Because names and layout are
Transformer Engine's, checkpoints of a CPU, a GPU with and a GPU without it are the same, and so is what megatron-bridge sees: it tells how
a weight is cut from the name of its module's class.
"""

import math
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import Parameter

SEQUENCE_PARALLEL = "sequence_parallel"
"""The mark of a parameter by which finalize_model_grads sums its gradient over the ranks among which the sequence is cut."""


def install() -> None:
    """Let `use_transformer_engine=True` mean the classes below where Transformer Engine is absent."""
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs

    if not gpt_layer_specs.HAVE_TE:
        rope_utils._apply_rotary_pos_emb_thd = _rotate_packed
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


class TEDotProductAttention(MegatronModule):
    """Causal attention of packed sequences; grouped queries as they are. Every pass of the trainer is packed, so nothing else is here."""

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Any, **__: Any
    ) -> torch.Tensor:
        """query [t, heads, d], key and value [t, groups, d] -> [t, heads * d]. Sequences are cut at `packed_seq_params.cu_seqlens_q`."""
        buckets, place = _buckets(tuple(packed_seq_params.cu_seqlens_q.tolist()), query.device)
        out = [
            self._attend(
                *(x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:]) for x in (query, key, value))
            )
            for rows in buckets
        ]
        return torch.cat(out).index_select(0, place)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[n, w, heads, d] -> [n * w, heads * d]"""
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1).flatten(1)


@lru_cache(maxsize=32)
def _buckets(starts: tuple[int, ...], device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Sequences of about the same length side by side: rows [n, w] of each bucket, and where each row's result lies in their concatenation.

    A bucket holds lengths of one power of two, so that fewer than half of its rows are filling. Filling repeats row 0 behind the end of a
    sequence, where causality hides it.
    """
    by_size: dict[int, list[tuple[int, int]]] = {}
    for start, end in pairwise(starts):
        by_size.setdefault((end - start).bit_length(), []).append((start, end))
    rows, place, offset = [], torch.empty(starts[-1], dtype=torch.long), 0
    for sequences in by_size.values():
        width = max(end - start for start, end in sequences)
        bucket = torch.zeros(len(sequences), width, dtype=torch.long)
        for i, (start, end) in enumerate(sequences):
            bucket[i, : end - start] = torch.arange(start, end)
            place[start:end] = torch.arange(end - start) + offset + i * width
        rows.append(bucket.to(device))
        offset += bucket.numel()
    return rows, place.to(device)


def _rotate_packed(t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Rotary embedding of packed rows [t, heads, d] from the angles of the longest sequence.

    megatron's own goes sequence by sequence (rope_utils.py), which takes half of a step's time when there are hundreds of short ones.
    """
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

    kwargs.pop("cp_group")
    starts = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
    positions = torch.arange(len(t), device=t.device) - starts
    return _apply_rotary_pos_emb_bshd(t.unsqueeze(1), freqs.index_select(0, positions), **kwargs).squeeze(1)


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
    if config.normalization == "RMSNorm":  # in float32 inside, as Transformer Engine does
        return F.rms_norm(x.float(), x.shape[-1:], gain.float(), config.layernorm_epsilon).to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], gain, bias, config.layernorm_epsilon)


class TorchBackend(BackendSpecProvider):
    """What TESpecProvider answers, in plain torch, for dense models."""

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
        """Experts one by one. megatron asks while it is imported (hybrid_layer_specs.py:59), so there has to be an answer."""
        return partial(
            SequentialMLP,
            submodules=MLPSubmodules(
                linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear, activation_func=None
            ),
        )
