"""Mixtral, which megatron-bridge lacks: how its Hugging Face tensors lie in megatron's. Stays: upstream decided against it
(NVIDIA-NeMo/Megatron-Bridge#144, #1317).
"""

from typing import Any

from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import AutoMapping, GatedMLPMapping, QKVMapping
from megatron.core.models.gpt.gpt_model import GPTModel
from transformers import MixtralForCausalLM

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.patches import Patch

LLAMA = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight": "model.layers.*.input_layernorm.weight",
    "decoder.layers.*.self_attention.linear_proj.weight": "model.layers.*.self_attn.o_proj.weight",
}
"""Tensors of which Llama and its relatives have one where megatron has one, but for those of the feed-forward layers."""
_SAME = LLAMA | {
    "decoder.layers.*.pre_mlp_layernorm.weight": "model.layers.*.post_attention_layernorm.weight",
    "decoder.layers.*.mlp.router.weight": "model.layers.*.block_sparse_moe.gate.weight",
    "decoder.layers.*.mlp.experts.linear_fc2.weight*": "model.layers.*.block_sparse_moe.experts.*.w2.weight",
}


def configure_as_llama(provider: Any, config: Any) -> None:
    """`config`: transformers', of a relative of Llama that may have a sliding window."""
    provider.normalization = "RMSNorm"
    provider.gated_linear_unit = True
    provider.add_bias_linear = False
    provider.add_qkv_bias = False
    if config.sliding_window:  # as megatron-bridge's Mistral
        provider.window_size, provider.cp_comm_type = (config.sliding_window - 1, 0), "a2a"


@MegatronModelBridge.register_bridge(source=MixtralForCausalLM, target=GPTModel, model_type="mixtral")
class MixtralBridge(MegatronModelBridge):
    """Llama with experts (arXiv 2401.04088). The softmax over the chosen experts' logits is the normalised softmax over all."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider, config = super().provider_bridge(hf_pretrained), hf_pretrained.config
        configure_as_llama(provider, config)
        provider.moe_ffn_hidden_size = config.intermediate_size
        provider.moe_router_pre_softmax = False
        provider.moe_permute_fusion = True  # as megatron-bridge's other models with experts
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        attention, experts = "model.layers.*.self_attn", "model.layers.*.block_sparse_moe.experts.*"
        return MegatronMappingRegistry(
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _SAME.items()),
            QKVMapping(
                megatron_param="decoder.layers.*.self_attention.linear_qkv.weight",
                q=f"{attention}.q_proj.weight",
                k=f"{attention}.k_proj.weight",
                v=f"{attention}.v_proj.weight",
            ),
            GatedMLPMapping(
                megatron_param="decoder.layers.*.mlp.experts.linear_fc1.weight*",
                gate=f"{experts}.w1.weight",
                up=f"{experts}.w3.weight",
            ),
        )


# registered by the import of this module
PATCHES = (Patch("Mixtral", "megatron-bridge", VERSIONS["megatron-bridge"]),)
