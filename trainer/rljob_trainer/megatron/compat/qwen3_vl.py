"""Qwen3-VL, dense and with experts.

Qwen3-VL: a language model of megatron's behind transformers' own vision tower, as Qwen2.5-VL is (qwen_vl.py).

megatron-bridge's model (models/qwen_vl/modelling_qwen3_vl) makes its tower of Transformer Engine's modules, which a CPU lacks, looks for the image
token in every row, and has a decoder of its own. Can go when megatron-bridge takes positions and places from its caller, and a backend for its tower.

Qwen3-VL with experts: as Qwen3-VL, with the feed-forward layers of Qwen3-MoE, whose experts are one tensor in the model's files.
Can go with that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
from megatron.bridge.models.conversion.param_mapping import AutoMapping, GatedMLPMapping, QKVMapping, ReplicatedMapping
from megatron.bridge.models.conversion.transformers_compat import rope_theta_from_hf
from megatron.bridge.models.conversion.utils import moe_experts_stored_packed
from megatron.bridge.models.qwen.qwen35_bridge import _moe_routed_expert_mappings
from megatron.bridge.models.qwen_vl.qwen25_vl_provider import Qwen25VLModelProvider
from megatron.bridge.utils.common_utils import hook_hf_module_setattr_for_tp_grad_sync
from megatron.core.models.common.embeddings.rotary_pos_embedding import MultimodalRotaryEmbedding
from megatron.core.transformer.module import MegatronModule
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLMoeForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.compat.families import LLAMA
from rljob_trainer.megatron.compat.qwen_vl import continued, put, scattered
from rljob_trainer.megatron.tower import run_tower
from rljob_trainer.patches import Patch

TEXT, LAYERS = "model.language_model.", "language_model.decoder.layers.*."


class InterleavedRotaryEmbedding(MultimodalRotaryEmbedding):
    """The angles of time, row and column alternate (Qwen3-VL, arXiv 2511.21631), where Qwen2.5-VL's are one behind the other."""

    def forward(self, position_ids: torch.Tensor, mrope_section: list[int], cp_group: Any = None) -> torch.Tensor:
        """position_ids [3, b, s]. Returns angles [s, b, 1, head]. The layouts of such models have no context parallelism."""
        number = torch.arange(len(self.inv_freq), device=position_ids.device)
        turns = [(number % 3 == axis) & (number < 3 * mrope_section[axis]) for axis in (1, 2)]
        axis = turns[0] + 2 * turns[1]
        angles = position_ids[axis].permute(2, 1, 0) * self.inv_freq.to(position_ids.device)
        return torch.cat((angles, angles), dim=-1)[:, :, None]


class JoinedGradients(torch.autograd.Function):
    """Passes the embedding through. Its gradient is the last of a backward pass: by then the `leaves`, which the layers read in place of the tower's
    `features`, have theirs, and the tower receives these together.

    A layer that is recomputed has a backward pass of its own, which would otherwise run through the tower each time.
    """

    @staticmethod
    def forward(ctx: Any, embedded: torch.Tensor, leaves: list[torch.Tensor], *features: torch.Tensor) -> torch.Tensor:
        ctx.leaves = leaves
        return embedded.view_as(embedded)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient, None, *(leaf.grad for leaf in ctx.leaves)


class Qwen3VLModel(MegatronModule):
    """The tower, and the language model to whose first layers it adds what it saw on the way (deepstack, arXiv 2406.04334)."""

    tower: ClassVar[Any] = Qwen3VLVisionModel
    """Its class in transformers."""

    def __init__(self, config: Any, pre_process: bool, post_process: bool, vp_stage: int | None) -> None:
        super().__init__(config=config)
        self.visual = self.tower._from_config(config.vision_config)
        hook_hf_module_setattr_for_tp_grad_sync(self.visual)
        text = config.provide_language_model(pre_process=pre_process, post_process=post_process, vp_stage=vp_stage)
        text.rotary_pos_emb = InterleavedRotaryEmbedding(
            config.kv_channels, config.rotary_percent, rotary_base=config.rotary_base
        )
        self.language_model = text
        self.share_embeddings_and_output_weights = config.share_embeddings_and_output_weights
        self.shared_embedding_or_output_weight = text.shared_embedding_or_output_weight
        self._added: list[torch.Tensor] = []
        """[s, 1, h] for each of the first layers: of the micro-batch that is computed, or none when it has no image."""
        for i in range(len(getattr(config.vision_config, "deepstack_visual_indexes", ()))):
            text.decoder.layers[i].register_forward_hook(partial(self._add, i))

    def set_input_tensor(self, input_tensor: Any) -> None:
        self.language_model.set_input_tensor(input_tensor)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        image_places: torch.Tensor | None = None,
        image_rows: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As Qwen2.5-VL's (qwen_vl.py). The whole model is on this rank's stage."""
        embedded, self._added = self.language_model.embedding(input_ids=input_ids, position_ids=None), []
        if pixel_values is not None:
            assert image_grid_thw is not None and image_places is not None and image_rows is not None
            seen = run_tower(self.visual, pixel_values, image_grid_thw)
            embedded = self._with_images(embedded, partial(put, places=image_places, rows=image_rows), seen)
        return continued(self, embedded, position_ids, attention_mask, **kwargs)

    def _with_images(self, embedded: torch.Tensor, placed: Callable[..., torch.Tensor], output: Any) -> torch.Tensor:
        """`embedded` [s, 1, h] with the images at their places; what the layers add is kept for them."""
        nothing = torch.zeros_like(embedded)
        features = [scattered(self, placed(nothing, seen=seen)) for seen in getattr(output, "deepstack_features", ())]
        self._added = [f.detach().requires_grad_(f.requires_grad) for f in features]
        return JoinedGradients.apply(placed(embedded, seen=output.pooler_output), self._added, *features)

    def _add(self, index: int, _layer: Any, _given: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        hidden, context = output
        return (hidden + self._added[index] if self._added else hidden), context

    def freeze(self, freeze_language_model: bool, freeze_vision_model: bool, freeze_vision_projection: bool) -> None:
        """By the names of megatron-bridge. The projector is everything that ends in the language model's width."""
        tower = self.visual
        parts = {
            self.language_model: freeze_language_model,
            tower.patch_embed: freeze_vision_model,
            tower.pos_embed: freeze_vision_model,
            tower.blocks: freeze_vision_model,
            tower.merger: freeze_vision_projection,
        }
        if hasattr(tower, "deepstack_merger_list"):
            parts[tower.deepstack_merger_list] = freeze_vision_projection
        for part in (part for part, frozen in parts.items() if frozen):
            part.requires_grad_(False)


@dataclass
class Qwen3VLModelProvider(Qwen25VLModelProvider):
    """Of Qwen3VLModel; the language model has norms of queries and keys."""

    made: ClassVar[type[Qwen3VLModel]] = Qwen3VLModel

    def provide(self, pre_process: bool = True, post_process: bool = True, vp_stage: int | None = None) -> Qwen3VLModel:
        model = self.made(self, pre_process, post_process, vp_stage)
        model.freeze(self.freeze_language_model, self.freeze_vision_model, self.freeze_vision_projection)
        return model


@MegatronModelBridge.register_bridge(
    source=Qwen3VLForConditionalGeneration, target=Qwen3VLModel, provider=Qwen3VLModelProvider, model_type="qwen3_vl"
)
class Qwen3VLBridge(MegatronModelBridge):
    """In place of megatron-bridge's of the same name."""

    provider: ClassVar[type[Qwen3VLModelProvider]] = Qwen3VLModelProvider

    def provider_bridge(self, hf_pretrained: Any) -> Qwen3VLModelProvider:
        config = hf_pretrained.config
        text = config.text_config
        return self.provider(
            **self.hf_config_to_provider_kwargs(text)
            | {
                "normalization": "RMSNorm",
                "gated_linear_unit": True,
                "add_bias_linear": False,
                "qk_layernorm": True,
                "hidden_dropout": 0.0,
                "rotary_base": rope_theta_from_hf(text),
                "share_embeddings_and_output_weights": config.tie_word_embeddings,
                "position_embedding_type": "mrope",
                "mrope_section": list(text.rope_parameters["mrope_section"]),
                "vision_config": config.vision_config,
            }
        )

    def mapping_registry(self) -> MegatronMappingRegistry:
        same = {f"language_model.{ours}": theirs.replace("model.", TEXT, 1) for ours, theirs in LLAMA.items()}
        same |= {
            f"{LAYERS}self_attention.q_layernorm.weight": f"{TEXT}layers.*.self_attn.q_norm.weight",
            f"{LAYERS}self_attention.k_layernorm.weight": f"{TEXT}layers.*.self_attn.k_norm.weight",
        }
        of_three = {part: f"{TEXT}layers.*.self_attn.{part}_proj.weight" for part in "qkv"}
        return MegatronMappingRegistry(
            *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in same.items()),
            QKVMapping(megatron_param=f"{LAYERS}self_attention.linear_qkv.weight", **of_three),
            *self.feed_forward(),
            ReplicatedMapping(megatron_param="visual.**", hf_param="model.visual.**"),
        )

    def feed_forward(self) -> list[Any]:
        """Mappings of a layer's feed-forward part and the norm before it."""
        ours, theirs = f"{LAYERS}mlp.linear_fc", f"{TEXT}layers.*."
        return [
            AutoMapping(f"{ours}1.layer_norm_weight", f"{theirs}post_attention_layernorm.weight"),
            GatedMLPMapping(f"{ours}1.weight", f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight"),
            AutoMapping(f"{ours}2.weight", f"{theirs}mlp.down_proj.weight"),
        ]


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


PATCHES = (
    # registered by the import of this module
    Patch("Qwen3-VL", "megatron-bridge", VERSIONS["megatron-bridge"]),
    # registered by the import of this module
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
