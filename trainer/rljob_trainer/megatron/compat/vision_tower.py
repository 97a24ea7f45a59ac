"""Vision towers of transformers: what megatron/tower.py relies on. Nothing is changed here.

A tower takes tables of places as keyword arguments; one whose name it does not know it passes on in silence, and makes its own. Its attention hands a
function whose name has `flash` in it the starts of all sequences and the longest one's length, by names that only the source says. Can go with
megatron/tower.py.
"""

from rljob_trainer.patches import Patch

VERSIONS = ("5.17.0",)
_UTILS, _FIRST, _SECOND = (
    f"transformers/{file}.py"
    for file in ("vision_utils", "models/qwen2_5_vl/modeling_qwen2_5_vl", "models/qwen3_vl/modeling_qwen3_vl")
)

PATCHES = (
    Patch(
        "tables and attention of vision towers",
        "transformers",
        VERSIONS,
        replaces={
            f"{_UTILS}:get_vision_cu_seqlens": "873804e45ec78552",
            f"{_UTILS}:get_vision_position_ids": "97e7c511e97c4741",
            f"{_UTILS}:get_vision_window_index": "01abf7ec051a1517",
            f"{_UTILS}:get_vision_interpolation_indices_and_weights": "7f23fcc6f9d08eba",
            f"{_UTILS}:get_vision_attention_seqlens": "f19ec855e2c91413",
            "transformers/utils/generic.py:get_max_seqlen": "596cb8ef95150cdb",
            "transformers/utils/generic.py:is_flash_attention_requested": "b8aa28a5c7be643d",
            f"{_FIRST}:Qwen2_5_VLVisionAttention.forward": "044bc72569fc3d46",
            f"{_FIRST}:Qwen2_5_VLVisionBlock.forward": "4e176b36dd7ef623",
            f"{_FIRST}:Qwen2_5_VisionTransformerPretrainedModel.forward": "dddfd349708f76dd",
            f"{_SECOND}:Qwen3VLVisionAttention.forward": "044bc72569fc3d46",
            f"{_SECOND}:Qwen3VLVisionBlock.forward": "4e176b36dd7ef623",
            f"{_SECOND}:Qwen3VLVisionModel.forward": "d59d0b3f2bf837bc",
        },
    ),
)
