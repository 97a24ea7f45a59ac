"""Families of models of which megatron-bridge has no bridge, or one for Transformer Engine only.

Mixtral, which megatron-bridge lacks: how its Hugging Face tensors lie in megatron's. Stays: upstream decided against it
(NVIDIA-NeMo/Megatron-Bridge#144, #1317).

Phi-3 and Phi-4, which megatron-bridge lacks: Llama whose matrices that read the same are one tensor. Can go when megatron-bridge has a bridge of
Phi3ForCausalLM.

Gemma 3 in torch layers where Transformer Engine is absent: megatron-bridge names Transformer Engine's in a layer spec of its own
(models/gemma/gemma3_provider.py). Can go when that spec takes a backend.

GLM-4 of text, which megatron-bridge lacks: Llama with norms also behind attention and feed-forward, and pairs of neighbours rotated in half of a
head. Can go when megatron-bridge has a bridge of Glm4ForCausalLM.
"""

import copy
from typing import Any

import torch
from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import (
    AutoMapping,
    ConcatenatedQKVMapping,
    GatedMLPMapping,
    MegatronParamMapping,
    QKVMapping,
)
from megatron.bridge.models.gemma import gemma3_provider
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import transformer_block
from transformers import Glm4ForCausalLM, MixtralForCausalLM, Phi3ForCausalLM

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.core_layers import lacks_transformer_engine
from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention
from rljob_trainer.megatron.plain_torch.layers import TELayerNormColumnParallelLinear, TENorm, block_spec
from rljob_trainer.patches import Patch

LLAMA = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight": "model.layers.*.input_layernorm.weight",
    "decoder.layers.*.self_attention.linear_proj.weight": "model.layers.*.self_attn.o_proj.weight",
}
"""Tensors of which Llama and its relatives have one where megatron has one, but for those of the feed-forward layers."""
_OF_MIXTRAL = LLAMA | {
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
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _OF_MIXTRAL.items()),
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


_OF_PHI = LLAMA | {
    "decoder.layers.*.mlp.linear_fc1.layer_norm_weight": "model.layers.*.post_attention_layernorm.weight",
    "decoder.layers.*.mlp.linear_fc2.weight": "model.layers.*.mlp.down_proj.weight",
}


class GateAndUpMapping(MegatronParamMapping[Any]):
    """One tensor [2 feed-forward, hidden] of both matrices of a gated layer, the gate first."""

    def __init__(self, megatron_param: str, hf_param: str) -> None:
        super().__init__(megatron_param, hf_param)
        self._halves = GatedMLPMapping(megatron_param, gate=f"{hf_param}.gate", up=f"{hf_param}.up")

    def hf_to_megatron(self, hf_weights: torch.Tensor, megatron_module: torch.nn.Module) -> torch.Tensor:
        gate, up = hf_weights.chunk(2)
        return self._halves.hf_to_megatron({"gate": gate, "up": up}, megatron_module)

    def megatron_to_hf(
        self, megatron_weights: torch.Tensor | None, megatron_module: torch.nn.Module | None
    ) -> dict[str, torch.Tensor]:
        halves = self._halves.megatron_to_hf(megatron_weights, megatron_module)
        name = str(self.hf_param)
        return {name: torch.cat([halves[f"{name}.gate"], halves[f"{name}.up"]])} if halves else {}

    def resolve(self, captures: tuple[str, ...]) -> "GateAndUpMapping":
        return GateAndUpMapping(*self._resolve_names(captures))


@MegatronModelBridge.register_bridge(source=Phi3ForCausalLM, target=GPTModel, model_type="phi3")
class Phi3Bridge(MegatronModelBridge):
    """arXiv 2404.14219, 2412.08905."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider, config = super().provider_bridge(hf_pretrained), hf_pretrained.config
        configure_as_llama(provider, config)
        provider.rotary_percent = config.rope_parameters.get("partial_rotary_factor", 1.0)
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        layer = "model.layers.*"
        return MegatronMappingRegistry(
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _OF_PHI.items()),
            ConcatenatedQKVMapping(
                megatron_param="decoder.layers.*.self_attention.linear_qkv.weight",
                hf_param=f"{layer}.self_attn.qkv_proj.weight",
            ),
            GateAndUpMapping("decoder.layers.*.mlp.linear_fc1.weight", f"{layer}.mlp.gate_up_proj.weight"),
        )


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


def _use_torch_layers_in_gemma() -> None:
    ours = (TENorm, TELayerNormColumnParallelLinear, TERowParallelLinearLayerNorm, Gemma3TEDotProductAttention)
    for layer in ours:
        setattr(gemma3_provider, layer.__name__, layer)
    transformer_block.LayerNormImpl = TENorm  # after the last layer, where a spec is of one layer


_LAYER, _THEIRS = "decoder.layers.*", "model.layers.*"
_OF_GLM = LLAMA | {
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
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _OF_GLM.items()),
            *qkv,
            GateAndUpMapping(f"{_LAYER}.mlp.linear_fc1.weight", f"{_THEIRS}.mlp.gate_up_proj.weight"),
        )


PATCHES = (
    # registered by the import of this module
    Patch("Mixtral", "megatron-bridge", VERSIONS["megatron-bridge"]),
    # registered by the import of this module
    Patch("Phi-3", "megatron-bridge", VERSIONS["megatron-bridge"]),
    Patch(
        "Gemma 3 in torch layers",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _use_torch_layers_in_gemma,
        needed=lacks_transformer_engine,
        replaces={
            "megatron/bridge/models/gemma/gemma3_provider.py:gemma3_layer_spec": "44ab1f4b1d4699a4",
            "megatron/bridge/models/gemma/gemma3_provider.py:Gemma3TEDotProductAttention": "de3ffc2e935d22c2",
            "megatron/bridge/models/common/te_layers.py:TERowParallelLinearLayerNorm": "78871c9290f2db23",
        },
    ),
    # registered by the import of this module
    Patch("GLM-4", "megatron-bridge", VERSIONS["megatron-bridge"]),
)
