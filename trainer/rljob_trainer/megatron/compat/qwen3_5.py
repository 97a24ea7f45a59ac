"""Qwen3.5 as it is published: gated delta nets, one layer of attention in four, behind a vision tower like Qwen3-VL's, which adds nothing to layers.

megatron-bridge's model (models/qwen_vl/qwen35_vl_provider.py) makes its tower of Transformer Engine's modules, as that of Qwen3-VL (qwen3_vl.py).
Can go with it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import ReplicatedMapping
from megatron.bridge.models.conversion.utils import moe_experts_stored_packed
from megatron.bridge.models.qwen.qwen35_bridge import (
    Qwen35Bridge,
    Qwen35MoEBridge,
    _apply_qwen35_common_config,
    _apply_qwen35_moe_config,
)
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from transformers import Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionModel

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.qwen3_vl import (
    TEXT,
    Qwen3VLBridge,
    Qwen3VLModel,
    Qwen3VLModelProvider,
)
from rljob_trainer.patches import Patch


class Qwen35VLModel(Qwen3VLModel):
    """Its language model has gated delta nets."""

    tower: ClassVar[Any] = Qwen3_5VisionModel


@dataclass
class Qwen35VLModelProvider(Qwen3VLModelProvider):
    """Of Qwen35VLModel."""

    made: ClassVar[type[Qwen3VLModel]] = Qwen35VLModel


@MegatronModelBridge.register_bridge(
    source=Qwen3_5ForConditionalGeneration, target=Qwen35VLModel, provider=Qwen35VLModelProvider, model_type="qwen3_5"
)
class Qwen35VLBridge(Qwen3VLBridge):
    """In place of megatron-bridge's of the same name."""

    provider: ClassVar[type[Qwen3VLModelProvider]] = Qwen35VLModelProvider
    complete: ClassVar[Any] = staticmethod(_apply_qwen35_common_config)
    """Sets what the language model has, from its configuration."""

    def provider_bridge(self, hf_pretrained: Any) -> Qwen3VLModelProvider:
        provider = super().provider_bridge(hf_pretrained)
        self.complete(provider, hf_pretrained.config.text_config)
        provider.transformer_layer_spec = get_transformer_block_with_experimental_attention_variant_spec
        provider.hetereogenous_dist_checkpoint = True  # layers have different tensors
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        return MegatronMappingRegistry(*self.language(), ReplicatedMapping("visual.**", "model.visual.**"))

    def language(self) -> list[Any]:
        """Mappings of the language model."""
        return Qwen35Bridge._get_dense_lm_mappings(hf_prefix=TEXT, megatron_prefix="language_model.")


class Qwen35VLMoeModel(Qwen3VLModel):
    """Its language model has experts, too."""

    tower: ClassVar[Any] = Qwen3_5MoeVisionModel


@dataclass
class Qwen35VLMoeModelProvider(Qwen3VLModelProvider):
    """Of Qwen35VLMoeModel."""

    made: ClassVar[type[Qwen3VLModel]] = Qwen35VLMoeModel


@MegatronModelBridge.register_bridge(
    source=Qwen3_5MoeForConditionalGeneration,
    target=Qwen35VLMoeModel,
    provider=Qwen35VLMoeModelProvider,
    model_type="qwen3_5_moe",
)
class Qwen35VLMoeBridge(Qwen35VLBridge):
    """In place of megatron-bridge's."""

    provider: ClassVar[type[Qwen3VLModelProvider]] = Qwen35VLMoeModelProvider
    complete: ClassVar[Any] = staticmethod(_apply_qwen35_moe_config)

    def language(self) -> list[Any]:
        packed = moe_experts_stored_packed(self.hf_pretrained, f"{TEXT}layers.")
        return Qwen35MoEBridge._get_moe_lm_mappings(TEXT, "language_model.", packed)


PATCHES = (
    # registered by the import of this module
    Patch(
        "Qwen3.5",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        replaces={
            "megatron/bridge/models/qwen/qwen35_bridge.py:_apply_qwen35_common_config": "d51e52da1197b530",
            "megatron/bridge/models/qwen/qwen35_bridge.py:_apply_qwen35_moe_config": "648ba9d64d5b784c",
            "megatron/bridge/models/qwen/qwen35_bridge.py:Qwen35MoEBridge._get_moe_lm_mappings": "ff0d68214631ffbd",
            "megatron/bridge/models/conversion/utils.py:moe_experts_stored_packed": "e34da28bd6173146",
            "megatron/bridge/models/qwen/qwen35_bridge.py:Qwen35Bridge._get_dense_lm_mappings": "b9d375284505b0c7",
        },
    ),
)
