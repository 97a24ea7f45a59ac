"""MiniMax-M2, whose norms of queries and keys are over all heads together, where other families have one for each head.

megatron-bridge cuts the weights of these norms over tensor-parallel ranks and sums the squares with a collective that autograd does not see
(models/minimax_m2/minimax_m2_provider.py). Megatron-core then adds up the gradients of the different pieces, since it takes such a weight for the
same on all ranks (core/distributed/finalize_model_grads.py). So log-probabilities are right and training is wrong. Its layers are also Transformer
Engine's only. Can go when the weight is whole on every rank there, the sum has a gradient, and the layers take a backend.
"""

from functools import partial
from typing import Any

import torch
from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import ReplicatedMapping
from megatron.bridge.models.minimax_m2 import minimax_m2_bridge
from megatron.core import parallel_state as mpu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.plain_torch.layers import block_spec
from rljob_trainer.patches import Patch

NORMS = {"q": "num_attention_heads", "k": "num_query_groups"}
"""Of queries and keys: the number of heads in megatron's configuration."""


class NormOfAllHeads(torch.nn.Module):
    """RMSNorm of all heads together, of which a tensor-parallel rank has some. Every rank has the whole weight [heads * width]."""

    def __init__(self, count: str, hidden_size: int, config: Any, eps: float) -> None:
        """`count`: the key of `config` that has the number of heads; `hidden_size`: the width of one."""
        super().__init__()
        self.heads, self.eps = getattr(config, count), eps
        self.weight = torch.nn.Parameter(torch.ones(self.heads * hidden_size, dtype=config.params_dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [s, b, heads of this rank, width], of the same shape as the result. Where there are more ranks than heads, several have the same."""
        ranks, rank = mpu.get_tensor_model_parallel_world_size(), mpu.get_tensor_model_parallel_rank()
        own = x.float().flatten(2)
        squares = copy_to_tensor_model_parallel_region(own.square().mean(-1, keepdim=True))
        mean = reduce_from_tensor_model_parallel_region(squares) / ranks
        first = rank * self.heads // ranks * x.shape[-1]
        gain = self.weight[first : first + own.shape[-1]].float()
        return (own * torch.rsqrt(mean + self.eps) * gain).view_as(x).to(x.dtype)


def normed_over_heads(config: Any, vp_stage: int | None = None) -> Any:
    """The decoder's layers."""
    spec = block_spec(config, vp_stage)
    for layer in spec.layer_specs:
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm, attention.k_layernorm = (partial(NormOfAllHeads, count) for count in NORMS.values())
    return spec


@MegatronModelBridge.register_bridge(source="MiniMaxM2ForCausalLM", target=GPTModel, model_type="minimax_m2")
class MiniMaxM2Bridge(minimax_m2_bridge.MiniMaxM2Bridge):
    """In place of megatron-bridge's of the same name."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider = super().provider_bridge(hf_pretrained)
        provider.transformer_layer_spec = normed_over_heads
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        cut = minimax_m2_bridge._FullDimQKNormMapping
        kept = [mapping for mapping in super().mapping_registry().mappings if not isinstance(mapping, cut)]
        whole = (
            ReplicatedMapping(
                f"decoder.layers.*.self_attention.{norm}_layernorm.weight",
                f"model.layers.*.self_attn.{norm}_norm.weight",
            )
            for norm in NORMS
        )
        return MegatronMappingRegistry(*kept, *whole)


PATCHES = (
    # registered by the import of this module
    Patch(
        "MiniMax-M2",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        replaces={
            "megatron/bridge/models/minimax_m2/minimax_m2_bridge.py:MiniMaxM2Bridge.provider_bridge": "aab51818360ac5a8",
            "megatron/bridge/models/minimax_m2/minimax_m2_bridge.py:MiniMaxM2Bridge.mapping_registry": "414868eb5aad3a30",
            "megatron/bridge/models/minimax_m2/minimax_m2_provider.py:_FullDimRMSNorm.forward": "e707f8dd2ce009ae",
        },
    ),
)
