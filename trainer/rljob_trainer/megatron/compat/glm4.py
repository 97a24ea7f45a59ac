"""GLM-4 of text, which megatron-bridge lacks: Llama with norms also behind attention and feed-forward, and pairs of neighbours rotated in half of a
head. Can go when megatron-bridge has a bridge of Glm4ForCausalLM.
"""

from typing import Any

from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import AutoMapping, QKVMapping
from megatron.bridge.models.gemma import gemma3_provider
from megatron.core.models.gpt.gpt_model import GPTModel
from transformers import Glm4ForCausalLM

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.mixtral import LLAMA
from rljob_trainer.megatron.compat.phi3 import GateAndUpMapping
from rljob_trainer.megatron.plain_torch.layers import block_spec
from rljob_trainer.patches import Patch

_LAYER, _THEIRS = "decoder.layers.*", "model.layers.*"
_SAME = LLAMA | {
    f"{_LAYER}.self_attention.linear_proj.post_layernorm.weight": f"{_THEIRS}.post_self_attn_layernorm.weight",
    f"{_LAYER}.mlp.linear_fc1.layer_norm_weight": f"{_THEIRS}.post_attention_layernorm.weight",
    f"{_LAYER}.mlp.linear_fc2.weight": f"{_THEIRS}.mlp.down_proj.weight",
    f"{_LAYER}.mlp.linear_fc2.post_layernorm.weight": f"{_THEIRS}.post_mlp_layernorm.weight",
}


def sandwiched(config: Any, vp_stage: int | None = None) -> Any:
    """The decoder's layers, with a norm of what attention and feed-forward give."""
    spec = block_spec(config, vp_stage)
    normed = gemma3_provider.TERowParallelLinearLayerNorm
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.linear_proj = normed
        layer.submodules.mlp.keywords["submodules"].linear_fc2 = normed
    return spec


@MegatronModelBridge.register_bridge(source=Glm4ForCausalLM, target=GPTModel, model_type="glm4")
class Glm4Bridge(MegatronModelBridge):
    """GLM-4-0414."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider, config = super().provider_bridge(hf_pretrained), hf_pretrained.config
        provider.normalization, provider.gated_linear_unit = "RMSNorm", True
        provider.add_bias_linear, provider.add_qkv_bias = False, config.attention_bias
        provider.rotary_percent = config.rope_parameters.get("partial_rotary_factor", 1.0)
        provider.rotary_interleaved = True
        provider.transformer_layer_spec = sandwiched
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        attention = f"{_THEIRS}.self_attn"
        qkv = [
            QKVMapping(
                megatron_param=f"{_LAYER}.self_attention.linear_qkv.{kind}",
                **{name: f"{attention}.{name}_proj.{kind}" for name in "qkv"},
            )
            for kind in ("weight", "bias")
        ]
        return MegatronMappingRegistry(
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _SAME.items()),
            *qkv,
            GateAndUpMapping(f"{_LAYER}.mlp.linear_fc1.weight", f"{_THEIRS}.mlp.gate_up_proj.weight"),
        )


# registered by the import of this module
PATCHES = (Patch("GLM-4", "megatron-bridge", VERSIONS["megatron-bridge"]),)
