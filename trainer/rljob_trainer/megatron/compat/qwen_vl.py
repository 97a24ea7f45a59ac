"""Models that see: the towers of transformers, and Qwen2.5-VL.

Vision towers of transformers: what megatron/tower.py relies on. Nothing is changed here.

A tower takes tables of places as keyword arguments; one whose name it does not know it passes on in silence, and makes its own. Its attention hands a
function whose name has `flash` in it the starts of all sequences and the longest one's length, by names that only the source says. Can go with
megatron/tower.py.

Qwen2.5-VL reads images where the batch says that they lie, at the positions that the batch gives.

megatron-bridge's model looks for the image token in every row and works positions out from the grids (models/qwen_vl/modeling_qwen25_vl.py). A policy
may write that token itself; rollouts then read its embedding as that of any other, and so does this model. The bridge also leaves out how many angles
turn with the time, the row and the column (qwen25_vl_bridge.py). Can go when megatron-bridge takes positions and places from its caller, and the
sections from config.json.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.bridge.models.qwen_vl.modeling_qwen25_vl import Qwen25VLModel
from megatron.bridge.models.qwen_vl.qwen25_vl_bridge import Qwen25VLBridge
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region

from rljob_trainer.megatron.compat import VERSIONS
from rljob_trainer.megatron.tower import run_tower
from rljob_trainer.patches import Patch

TRANSFORMERS = ("5.17.0",)
_VISION_UTILS, _FIRST, _SECOND, _THIRD = (
    f"transformers/{file}.py"
    for file in (
        "vision_utils",
        "models/qwen2_5_vl/modeling_qwen2_5_vl",
        "models/qwen3_vl/modeling_qwen3_vl",
        "models/qwen3_5/modeling_qwen3_5",
    )
)


def forward(
    self: Any,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    attention_mask: None,
    pixel_values: torch.Tensor | None = None,
    image_grid_thw: torch.Tensor | None = None,
    image_places: torch.Tensor | None = None,
    image_rows: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """input_ids [1, t], position_ids [1, t] of a text or [3, 1, t]; images as MicroBatch.images has them. The whole model is on this rank's stage."""
    embedded = self.language_model.embedding(input_ids=input_ids, position_ids=None)
    if pixel_values is not None:
        assert image_grid_thw is not None and image_places is not None and image_rows is not None
        seen = run_tower(self.visual, pixel_values, image_grid_thw).pooler_output
        embedded = put(embedded, image_places, seen, image_rows)
    return continued(self, embedded, position_ids, attention_mask, **kwargs)


def put(row: torch.Tensor, places: torch.Tensor, seen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`row` [s, 1, h] with the `rows` [v] of `seen` at `places` [v]. Rows repeat, and the gradients of a repeated one are added in float32."""
    return row.index_copy(0, places, F.embedding(rows, seen.float()).to(row)[:, None])


def scattered(model: Any, row: torch.Tensor) -> torch.Tensor:
    """This rank's part of `row` [s, 1, h] under sequence parallelism."""
    if not model.config.sequence_parallel:
        return row
    return scatter_to_sequence_parallel_region(row, group=model.language_model.pg_collection.tp)


def continued(
    model: Any, embedded: torch.Tensor, position_ids: torch.Tensor, attention_mask: None, **kwargs: Any
) -> torch.Tensor:
    """What the language model makes of `embedded` [s, 1, h]. A text has one position for all three axes."""
    if position_ids.dim() == 2:
        position_ids = position_ids.expand(3, *position_ids.shape)
    return model.language_model(None, position_ids, attention_mask, decoder_input=scattered(model, embedded), **kwargs)


def _read_where_the_batch_says() -> None:
    Qwen25VLModel.forward = forward
    Qwen25VLBridge.provider_bridge = _with_sections(Qwen25VLBridge.provider_bridge)


def _with_sections(make: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def provider(self: Any, hf_pretrained: Any) -> Any:
        made = make(self, hf_pretrained)
        made.mrope_section = list(hf_pretrained.config.text_config.rope_parameters["mrope_section"])
        return made

    return provider


PATCHES = (
    Patch(
        "tables and attention of vision towers",
        "transformers",
        TRANSFORMERS,
        replaces={
            f"{_VISION_UTILS}:get_vision_cu_seqlens": "873804e45ec78552",
            f"{_VISION_UTILS}:get_vision_position_ids": "97e7c511e97c4741",
            f"{_VISION_UTILS}:get_vision_window_index": "01abf7ec051a1517",
            f"{_VISION_UTILS}:get_vision_interpolation_indices_and_weights": "7f23fcc6f9d08eba",
            f"{_VISION_UTILS}:get_vision_attention_seqlens": "f19ec855e2c91413",
            "transformers/utils/generic.py:get_max_seqlen": "596cb8ef95150cdb",
            "transformers/utils/generic.py:is_flash_attention_requested": "b8aa28a5c7be643d",
            f"{_FIRST}:Qwen2_5_VLVisionAttention.forward": "044bc72569fc3d46",
            f"{_FIRST}:Qwen2_5_VLVisionBlock.forward": "4e176b36dd7ef623",
            f"{_FIRST}:Qwen2_5_VisionTransformerPretrainedModel.forward": "dddfd349708f76dd",
            f"{_SECOND}:Qwen3VLVisionAttention.forward": "044bc72569fc3d46",
            f"{_SECOND}:Qwen3VLVisionBlock.forward": "4e176b36dd7ef623",
            f"{_SECOND}:Qwen3VLVisionModel.forward": "d59d0b3f2bf837bc",
            f"{_THIRD}:Qwen3_5VisionAttention.forward": "044bc72569fc3d46",
            f"{_THIRD}:Qwen3_5VisionBlock.forward": "4e176b36dd7ef623",
            f"{_THIRD}:Qwen3_5VisionModel.forward": "b609d4f5a25ad401",
        },
    ),
    Patch(
        "Qwen2.5-VL",
        "megatron-bridge",
        VERSIONS["megatron-bridge"],
        _read_where_the_batch_says,
        replaces={"megatron/bridge/models/qwen_vl/modeling_qwen25_vl.py:Qwen25VLModel.forward": "22b5eaa8563f393a"},
    ),
)
