"""Gemma 3 in torch layers where Transformer Engine is absent: megatron-bridge names Transformer Engine's in a layer spec of its own
(models/gemma/gemma3_provider.py). Can go when that spec takes a backend.
"""

import copy
from typing import Any

import torch
from megatron.bridge.models.gemma import gemma3_provider
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import transformer_block

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.torch_layers import has_transformer_engine
from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention
from rljob_trainer.megatron.plain_torch.layers import TELayerNormColumnParallelLinear, TENorm
from rljob_trainer.patches import Patch


class TERowParallelLinearLayerNorm(RowParallelLinear):
    """A row-parallel matrix and the norm of what it gives."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **kwargs: Any) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = TENorm(config, output_size)

    def forward(self, x: torch.Tensor) -> Any:
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class Gemma3TEDotProductAttention(TEDotProductAttention):
    """`config.window_size` is a number of tokens, of the layers that are local."""

    def __init__(self, config: Any, layer_number: int, *args: Any, **kwargs: Any) -> None:
        config = copy.copy(config)
        local = gemma3_provider._is_local_attn_layer(layer_number, config.interleaved_attn_pattern)
        config.window_size = (config.window_size - 1, 0) if local else None
        super().__init__(config, layer_number, *args, **kwargs)


def _use_torch_layers() -> None:
    ours = (TENorm, TELayerNormColumnParallelLinear, TERowParallelLinearLayerNorm, Gemma3TEDotProductAttention)
    for layer in ours:
        setattr(gemma3_provider, layer.__name__, layer)
    transformer_block.LayerNormImpl = TENorm  # after the last layer, where a spec is of one layer


PATCHES = (
    Patch(
        "Gemma 3 in torch layers",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _use_torch_layers,
        needed=lambda: not has_transformer_engine(),
        replaces={
            "megatron/bridge/models/gemma/gemma3_provider.py:gemma3_layer_spec": "44ab1f4b1d4699a4",
            "megatron/bridge/models/gemma/gemma3_provider.py:Gemma3TEDotProductAttention": "de3ffc2e935d22c2",
            "megatron/bridge/models/common/te_layers.py:TERowParallelLinearLayerNorm": "78871c9290f2db23",
        },
    ),
)
