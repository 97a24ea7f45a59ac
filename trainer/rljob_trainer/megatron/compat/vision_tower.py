"""Vision towers of transformers: what megatron/tower.py relies on. Nothing is changed here.

A tower takes tables of places as keyword arguments; one whose name it does not know it passes on in silence, and makes its own. Its attention hands a
function whose name has `flash` in it the starts of all sequences, by names that only the source says. 5.12.1 is the version of our images, which the
tests run on, and whose fingerprints these are; 5.17.0 that of the machines of docs/evidence/gpus.md, where jobs with images ran. Its towers take
tables under names that the tests only list, and wait for the GPU once or twice in a pass, for the longest sequence. Can go with megatron/tower.py.
"""

from rljob_trainer.patches import Patch

VERSIONS = ("5.12.1", "5.17.0")
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
            f"{_UTILS}:get_vision_cu_seqlens": "0de7e647bce17c67",
            f"{_UTILS}:get_vision_position_ids": "504551ad2309604b",
            f"{_UTILS}:get_vision_window_index": "01abf7ec051a1517",
            f"{_UTILS}:get_vision_bilinear_indices_and_weights": "fe1d83646215b78e",
            "transformers/utils/generic.py:is_flash_attention_requested": "f0910079a32a82aa",
            f"{_FIRST}:Qwen2_5_VLVisionAttention.forward": "3262f68e121e3f2d",
            f"{_FIRST}:Qwen2_5_VLVisionBlock.forward": "f032ff042d548d64",
            f"{_FIRST}:Qwen2_5_VisionTransformerPretrainedModel.forward": "07034e85b9779096",
            f"{_SECOND}:Qwen3VLVisionAttention.forward": "3262f68e121e3f2d",
            f"{_SECOND}:Qwen3VLVisionBlock.forward": "f032ff042d548d64",
            f"{_SECOND}:Qwen3VLVisionModel.forward": "21160d5afd01ccea",
        },
    ),
)
