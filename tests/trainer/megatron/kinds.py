"""Tiny models by their kind: each family of rljob_api.families, and its variants, as configurations of transformers."""

from typing import Any

from trainer.kimi_k2 import taught

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
} | {"original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
DEEPSEEK_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 32,
}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
MINIMAX = MIXTRAL | {"head_dim": 32, "rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True}
MINIMAX |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
"""transformers reads the factor, everybody else `rotary_dim`."""
GEMMA = {"num_hidden_layers": 8, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 5}
"""Every sixth layer sees everything."""
SHARED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
GLM = SHARED | {"head_dim": 32, "partial_rotary_factor": 0.5, "attention_bias": True, "num_nextn_predict_layers": 1}
HYBRID = {
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}
"""Three layers with a gated delta net, then one that sees everything."""
HYBRID_EXPERTS = HYBRID | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
LATENT = SHARED | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 24,
    "routed_scaling_factor": 2.5,
}
"""The latents and the rotated part are as wide as in all published models: vLLM computes no others on CPUs."""
V2 = LATENT | {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False, "n_shared_experts": 2}
V3 = LATENT | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
KIMI_YARN = YARN | {"rope_theta": 50000.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0}
SPARSE = V3 | {"q_lora_rank": 32, "index_topk": 4, "index_n_heads": 32, "index_head_dim": 96}
"""Fewer tokens are chosen than most samples have. With as many heads as in published models, no two tokens have the same score of 0."""
TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 16,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
"""A window is two by two tokens."""
QWEN_VL = {
    "vision_config": TOWER,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    "image_token_id": 124,
    "video_token_id": 125,
    "vision_start_token_id": 126,
    "vision_end_token_id": 127,
    "bos_token_id": None,
    "eos_token_id": None,
}
VISION_KEYS = ("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
QWEN3_VL = QWEN_VL | {
    "vision_config": {k: v for k, v in TOWER.items() if k not in ("window_size", "fullatt_block_indexes")}
    | {"depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
    "rope_parameters": QWEN_VL["rope_parameters"] | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
    "head_dim": 32,
}
QWEN3_5 = (
    HYBRID
    | QWEN_VL
    | {
        "vision_config": {k: v for k, v in QWEN3_VL["vision_config"].items() if k != "deepstack_visual_indexes"},
        "rope_parameters": HYBRID["rope_parameters"] | {"mrope_section": [2, 1, 1], "mrope_interleaved": True},
    }
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama, llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral": ("MistralConfig", {"head_dim": 32, "sliding_window": None}),
    "mistral, window": ("MistralConfig", {"head_dim": 32, "sliding_window": 5}),
    "phi3": ("Phi3Config", {"pad_token_id": 0, "sliding_window": None}),
    "phi3, window": ("Phi3Config", {"pad_token_id": 0, "sliding_window": 5, "rope_parameters": PARTIAL}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2, yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", QWEN_VL),
    "qwen3_vl": ("Qwen3VLConfig", QWEN3_VL),
    "qwen3_vl_moe": ("Qwen3VLMoeConfig", QWEN3_VL | EXPERTS | {"moe_intermediate_size": 48}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "qwen3, yarn": ("Qwen3Config", {"head_dim": 32, "rope_parameters": YARN}),
    "qwen3_moe": ("Qwen3MoeConfig", EXPERTS),
    "qwen3_moe, yarn": ("Qwen3MoeConfig", EXPERTS | {"rope_parameters": YARN}),
    "qwen3_next": ("Qwen3NextConfig", HYBRID_EXPERTS),
    "qwen3_5": ("Qwen3_5Config", QWEN3_5),
    "qwen3_5_moe": ("Qwen3_5MoeConfig", HYBRID_EXPERTS | QWEN3_5),
    "qwen3_5_text": ("Qwen3_5TextConfig", HYBRID),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", HYBRID_EXPERTS),
    "gemma3_text": ("Gemma3TextConfig", GEMMA),
    "mixtral": ("MixtralConfig", MIXTRAL),
    "mixtral, window": ("MixtralConfig", MIXTRAL | {"sliding_window": 5}),
    "glm4": ("Glm4Config", {"head_dim": 32, "pad_token_id": 0, "eos_token_id": 0}),
    "glm4_moe": ("Glm4MoeConfig", GLM),
    "glm4_moe, norms": ("Glm4MoeConfig", GLM | {"use_qk_norm": True}),
    "minimax_m2": ("MiniMaxM2Config", MINIMAX),
    "gpt_oss": ("GptOssConfig", MIXTRAL | {"head_dim": 32, "sliding_window": 5}),
    "deepseek_v2": ("DeepseekV2Config", V2),
    "deepseek_v2, yarn": ("DeepseekV2Config", V2 | {"rope_parameters": DEEPSEEK_YARN}),
    "deepseek_v3": ("DeepseekV3Config", V3 | {"q_lora_rank": 32, "n_group": 2, "num_nextn_predict_layers": 1}),
    "deepseek_v3, yarn": ("DeepseekV3Config", V3 | {"q_lora_rank": None, "rope_parameters": DEEPSEEK_YARN}),
    "kimi_k2": ("KimiK2Config", V3 | {"q_lora_rank": 32, "num_nextn_predict_layers": 0, "rope_parameters": KIMI_YARN}),
    "deepseek_v32": ("DeepseekV32Config", SPARSE | {"n_group": 2}),
    "deepseek_v32, yarn": ("DeepseekV32Config", SPARSE | {"rope_parameters": KIMI_YARN}),
    "glm_moe_dsa": ("GlmMoeDsaConfig", SPARSE | {"indexer_rope_interleave": True}),
    "glm_moe_dsa, shared": (
        "GlmMoeDsaConfig",
        SPARSE | {"indexer_rope_interleave": True, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    ),
}
"""Every family of rljob_api.families, by its model_type, and its variants: the class of its configuration, and what differs from SHAPE."""
TIED = ("qwen2", "qwen3", "qwen3_vl", "gemma3_text")
"""Those whose output layer is the embedding, in the tests of all families."""


def family_of(kind: str) -> str:
    return kind.partition(",")[0]


def make_config(kind: str, vocabulary: int = 160, tied: bool = False, **sizes: int) -> Any:
    """transformers' configuration of a tiny model. `sizes`: in place of those in SHAPE."""
    name, more = KINDS[kind]
    text, whole = SHAPE | sizes | more | {"vocab_size": vocabulary}, {"tie_word_embeddings": tied}
    if "vision_config" in more:
        whole |= {key: text.pop(key) for key in VISION_KEYS}
        return config_class(name)(text_config=text, **whole)
    return config_class(name)(**text, **whole)


def config_class(name: str) -> Any:
    """Of transformers, or Kimi K2's, which transformers does not have."""
    import transformers

    return getattr(transformers, name, None) or taught(name)
