"""The models of benchmarks/vision.py: a small one of each family that reads images, and one in a published shape."""

from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A model and its batch."""

    family: str
    text: dict[str, Any]
    tower: dict[str, Any]
    side: int
    """Of a picture, in pixels."""
    prompts: int
    samples: int
    max_tokens: int


SMALL_TEXT = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]},
}
SMALL_TOWER = {
    "depth": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [3],
}
PLAIN_TOWER = {k: v for k, v in SMALL_TOWER.items() if k not in ("window_size", "fullatt_block_indexes")} | {
    "patch_size": 16,
    "num_position_embeddings": 576,
}
DEEPSTACK = PLAIN_TOWER | {"deepstack_visual_indexes": [0, 1, 2]}
INTERLEAVED = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
QWEN_3B = SMALL_TEXT | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]},
}
TOWER_3B = SMALL_TOWER | {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
NET = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
HYBRID = (
    SMALL_TEXT
    | NET
    | {
        "head_dim": 256,
        "rope_parameters": INTERLEAVED | {"mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
    }
)
"""Three gated delta nets, and attention with heads as wide as in published models."""
EXPERTS = {
    "num_experts": 8,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
}
KINDS = {
    "qwen2_5_vl": Kind("qwen2_5_vl", SMALL_TEXT, SMALL_TOWER, 224, 16, 4, 64),
    "qwen3_vl": Kind(
        "qwen3_vl", SMALL_TEXT | {"head_dim": 64, "rope_parameters": INTERLEAVED}, DEEPSTACK, 256, 16, 4, 64
    ),
    "qwen3_vl_moe": Kind(
        "qwen3_vl_moe",
        SMALL_TEXT | EXPERTS | {"head_dim": 64, "rope_parameters": INTERLEAVED},
        DEEPSTACK,
        256,
        16,
        4,
        64,
    ),
    "qwen3_5": Kind("qwen3_5", HYBRID, PLAIN_TOWER, 256, 16, 4, 64),
    "qwen3_5_moe": Kind(
        "qwen3_5_moe", HYBRID | EXPERTS | {"shared_expert_intermediate_size": 256}, PLAIN_TOWER, 256, 16, 4, 64
    ),
    "qwen2.5-vl-3b": Kind("qwen2_5_vl", QWEN_3B, TOWER_3B, 448, 64, 8, 256),
}
"""The last: the shape of Qwen2.5-VL-3B; a picture takes 256 tokens."""
