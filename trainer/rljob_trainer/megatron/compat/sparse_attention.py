"""GLM-5 and DeepSeek-V3.2, whose queries attend to the tokens that an indexer chooses.

megatron-bridge's GLM-5 has megatron-core's attention (core/transformer/experimental_attention_variant/dsa.py), which without kernels of cuDNN or
TileLang computes scores of every token of a pack for every other one, in float32, and trains the indexer with a loss that it adds to the policy's.
Here it is the one of plain_torch/sparse_attention.py, with the same names of parameters. Can go when megatron-core attends within sequences without
these kernels.

DeepSeek-V3.2, which megatron-bridge lacks: DeepSeek-V3 with that attention. Can go when megatron-bridge has a bridge of DeepseekV32ForCausalLM.
"""

from typing import Any

from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import AutoMapping
from megatron.bridge.models.deepseek.deepseek_v3_bridge import DeepSeekV3Bridge
from megatron.bridge.models.glm_moe_dsa import glm5_bridge
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from transformers import DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM

from rljob_api.indexers import SHARED, indexers_of
from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.plain_torch.sparse_attention import SparseAttention
from rljob_trainer.patches import Patch

_OURS = "decoder.layers.*.self_attention.core_attention.indexer"
_THEIRS = "model.layers.*.self_attn.indexer"
OF_INDEXER = {
    f"{_OURS}.linear_wq_b.weight": f"{_THEIRS}.wq_b.weight",
    f"{_OURS}.linear_wk.weight": f"{_THEIRS}.wk.weight",
    f"{_OURS}.k_norm.weight": f"{_THEIRS}.k_norm.weight",
    f"{_OURS}.k_norm.bias": f"{_THEIRS}.k_norm.bias",
    f"{_OURS}.linear_weights_proj.weight": f"{_THEIRS}.weights_proj.weight",
}


def indexed(config: Any, vp_stage: int | None = None, pp_rank: int | None = None) -> Any:
    """The decoder's layers: those of megatron-core with latent attention that is not absorbed, and ours inside of it."""
    spec = get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage, pp_rank)
    for layer in spec.layer_specs:
        absorbed = layer.submodules.self_attention
        parts = vars(absorbed.submodules)
        inside = ModuleSpec(module=SparseAttention, submodules=parts["core_attention"].submodules)
        layer.submodules.self_attention = ModuleSpec(
            module=MLASelfAttention,
            params=absorbed.params,
            submodules=MLASelfAttentionSubmodules(**parts | {"core_attention": inside}),
            metainfo=absorbed.metainfo,
        )
    return spec


def _attend_sparsely(provider: Any, config: Any, interleaved: bool) -> None:
    """`config`: transformers'. `interleaved`: whether neighbours are rotated together in the indexer, as they are in attention."""
    provider.transformer_layer_spec = indexed
    provider.experimental_attention_variant = "dsa"
    provider.cp_comm_type = "allgather"
    provider.dsa_indexer_n_heads = config.index_n_heads
    provider.dsa_indexer_head_dim = config.index_head_dim
    provider.dsa_indexer_topk = config.index_topk
    provider.dsa_indexer_topk_freq, provider.dsa_indexer_skip_topk_offset = 1, 0  # in their place:
    provider.indexer_types = indexers_of(config.to_dict())
    provider.hetereogenous_dist_checkpoint = SHARED in provider.indexer_types  # layers have different tensors
    provider.dsa_indexer_rope_interleaved = interleaved
    provider.dsa_indexer_rotate_activation = False  # it is orthogonal, so that it changes no product
    provider.dsa_indexer_k_norm_epsilon = 1e-6
    provider.dsa_indexer_loss_coeff = 0.0


@MegatronModelBridge.register_bridge(
    source=GlmMoeDsaForCausalLM, target=GPTModel, provider=MLAModelProvider, model_type="glm_moe_dsa"
)
class GLM5Bridge(glm5_bridge.GLM5Bridge):
    """In place of megatron-bridge's of the same name."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider = super().provider_bridge(hf_pretrained)
        _attend_sparsely(provider, hf_pretrained.config, interleaved=True)
        return provider


@MegatronModelBridge.register_bridge(
    source=DeepseekV32ForCausalLM, target=GPTModel, provider=MLAModelProvider, model_type="deepseek_v32"
)
class DeepSeekV32Bridge(DeepSeekV3Bridge):
    """DeepSeek-V3 with an indexer in every layer."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        provider = super().provider_bridge(hf_pretrained)
        _attend_sparsely(provider, hf_pretrained.config, interleaved=False)
        return provider

    def mapping_registry(self) -> MegatronMappingRegistry:
        further = (AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in OF_INDEXER.items())
        return MegatronMappingRegistry(*super().mapping_registry().mappings, *further)


PATCHES = (
    # registered by the import of this module
    Patch(
        "sparse attention",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        replaces={
            "megatron/bridge/models/glm_moe_dsa/glm5_bridge.py:GLM5Bridge.provider_bridge": "6595917014d4981c",
            "megatron/bridge/models/glm_moe_dsa/glm5_bridge.py:GLM5Bridge.mapping_registry": "523537d4a73fa08a",
            "megatron/bridge/models/deepseek/deepseek_v3_bridge.py:DeepSeekV3Bridge.provider_bridge": "177fac426c5850d0",
        },
    ),
    Patch(
        "inputs of an indexer",
        "megatron-core",
        VERSIONS["megatron-core"],
        replaces={
            "megatron/core/transformer/experimental_attention_variant/dsa.py:DSAIndexer.forward_before_topk": "b48b988898cf9755",
            "megatron/core/transformer/multi_latent_attention.py:MultiLatentAttention.forward": "c57a6f003f023cf1",
            "megatron/core/models/gpt/experimental_attention_variant_module_specs.py:get_dsa_module_spec_for_backend": "b94fecb261ab5e76",
        },
    ),
)
