"""What a config.json says of small models of several families, and the rules that they break."""

from typing import Any

from api.specs import make_spec
from rljob_api.rules.model import model_violations

P, M, T = "spec.trainer.parallelism", "spec.model.path", "spec.rollout.tensorParallel"
DENSE = {
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "vocab_size": 101,
}
EXPERTS = DENSE | {"model_type": "qwen3_moe", "num_experts": 6, "moe_intermediate_size": 32}
LATENT = DENSE | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 33,
    "num_key_value_heads": 3,
    "kv_lora_rank": 512,
}
SPARSE = LATENT | {
    "model_type": "glm_moe_dsa",
    "num_key_value_heads": 8,
    "indexer_rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 16,
}
SHARED = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
"""Layers 0, 1, 2, 6 and 10 have indexers."""
HYBRID = DENSE | {
    "model_type": "qwen3_5_text",
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MINIMAX = DENSE | {"model_type": "minimax_m2", "num_local_experts": 6, "head_dim": 32, "rotary_dim": 16}
MINIMAX |= {"scoring_func": "sigmoid", "use_routing_bias": True}
NEXT = HYBRID | {"model_type": "qwen3_next"}
GLM = DENSE | {"model_type": "glm4_moe", "n_routed_experts": 6, "moe_intermediate_size": 32}
GEMMA = DENSE | {"model_type": "gemma3_text"}
LOCAL = "sliding_attention"
VISION = {
    "model_type": "qwen2_5_vl",
    "vision_config": {"depth": 2},
    "text_config": DENSE
    | {"model_type": "qwen2_5_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}},
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


def check(config: dict[str, Any], trainer: dict[str, Any] | None = None, **sizes: int | bool) -> list[tuple[str, str]]:
    spec = make_spec(trainer={"device": "cpu", "nodes": 24, "parallelism": sizes} | (trainer or {}))
    return [(v.field, v.rule) for v in model_violations(spec, config)]


def require_broken(config: dict[str, Any], sizes: dict[str, Any], field: str, rule: str) -> None:
    """One rule is broken, and it is named at its field. That no servers generate for a family is no part of it."""
    ((found, text),) = ((f, r) for f, r in check(config, **sizes) if "vLLM generates" not in r)
    assert found == field
    assert text.startswith(rule)
