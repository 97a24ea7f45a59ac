"""Phi-3 and Phi-4, which megatron-bridge lacks: Llama whose matrices that read the same are one tensor. Can go when megatron-bridge has a bridge of
Phi3ForCausalLM.
"""

from typing import Any

import torch
from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import (
    AutoMapping,
    ConcatenatedQKVMapping,
    GatedMLPMapping,
    MegatronParamMapping,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from transformers import Phi3ForCausalLM

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.mixtral import LLAMA, configure_as_llama
from rljob_trainer.patches import Patch

_SAME = LLAMA | {
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
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in _SAME.items()),
            ConcatenatedQKVMapping(
                megatron_param="decoder.layers.*.self_attention.linear_qkv.weight",
                hf_param=f"{layer}.self_attn.qkv_proj.weight",
            ),
            GateAndUpMapping("decoder.layers.*.mlp.linear_fc1.weight", f"{layer}.mlp.gate_up_proj.weight"),
        )


# registered by the import of this module
PATCHES = (Patch("Phi-3", "megatron-bridge", VERSIONS["megatron-bridge"]),)
