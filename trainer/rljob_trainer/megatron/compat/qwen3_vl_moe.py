"""Qwen3-VL with experts: as Qwen3-VL (qwen3_vl.py), with the feed-forward layers of Qwen3-MoE, whose experts are one tensor in the model's files.
Can go when qwen3_vl.py can.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import AutoMapping
from megatron.bridge.models.conversion.utils import moe_experts_stored_packed
from megatron.bridge.models.qwen.qwen35_bridge import _moe_routed_expert_mappings
from transformers import Qwen3VLMoeForConditionalGeneration
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.qwen3_vl import (
    LAYERS,
    TEXT,
    Qwen3VLBridge,
    Qwen3VLModel,
    Qwen3VLModelProvider,
)
from rljob_trainer.patches import Patch


class Qwen3VLMoeModel(Qwen3VLModel):
    """Its language model has experts."""

    tower: ClassVar[Any] = Qwen3VLMoeVisionModel


@dataclass
class Qwen3VLMoeModelProvider(Qwen3VLModelProvider):
    """Of Qwen3VLMoeModel."""

    made: ClassVar[type[Qwen3VLModel]] = Qwen3VLMoeModel


@MegatronModelBridge.register_bridge(
    source=Qwen3VLMoeForConditionalGeneration,
    target=Qwen3VLMoeModel,
    provider=Qwen3VLMoeModelProvider,
    model_type="qwen3_vl_moe",
)
class Qwen3VLMoeBridge(Qwen3VLBridge):
    """In place of megatron-bridge's."""

    provider: ClassVar[type[Qwen3VLModelProvider]] = Qwen3VLMoeModelProvider

    def provider_bridge(self, hf_pretrained: Any) -> Qwen3VLModelProvider:
        provider, text = super().provider_bridge(hf_pretrained), hf_pretrained.config.text_config
        provider.moe_ffn_hidden_size = text.moe_intermediate_size
        provider.num_moe_experts, provider.moe_router_topk = text.num_experts, text.num_experts_per_tok
        provider.moe_router_pre_softmax = False
        provider.moe_permute_fusion = True
        return provider

    def feed_forward(self) -> list[Any]:
        packed = moe_experts_stored_packed(self.hf_pretrained, f"{TEXT}layers.")
        return [
            AutoMapping(f"{LAYERS}pre_mlp_layernorm.weight", f"{TEXT}layers.*.post_attention_layernorm.weight"),
            AutoMapping(f"{LAYERS}mlp.router.weight", f"{TEXT}layers.*.mlp.gate.weight"),
            *_moe_routed_expert_mappings(TEXT, "language_model.", packed, transpose_on_export=True),
        ]


# registered by the import of this module
PATCHES = (
    Patch(
        "Qwen3-VL with experts",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        replaces={
            "megatron/bridge/models/qwen/qwen35_bridge.py:_moe_routed_expert_mappings": "541748be1df53c23",
            "megatron/bridge/models/conversion/utils.py:moe_experts_stored_packed": "e34da28bd6173146",
        },
    ),
)
