"""Keys of config.json that megatron-bridge or vLLM read in models of any family, though only some families have what they describe. Elsewhere they
would make the trainer, or the servers, compute another model than transformers, or end in a message about something else."""

from collections.abc import Mapping
from typing import Any, NamedTuple

GROUPED = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe", "glm_moe_dsa", "kimi_k2")
"""Families whose routers are DeepSeek's."""
QWEN_EXPERTS = ("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
QWEN_PARTLY = (*QWEN_EXPERTS, "qwen3_5", "qwen3_5_text")
QWEN_NORMED = ("qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe")
"""They have norms of queries and keys whatever they say; Qwen3-Coder's config.json says so."""


class Known(NamedTuple):
    """What is known of a key."""

    families: tuple[str, ...] = ()
    """Those that have what it describes."""
    nothing: tuple[Any, ...] = ()
    """Values with which other families have no such part either."""


KEYS = {
    # megatron-bridge 0.6.2: models/conversion/model_bridge.py, MegatronModelBridge.CONFIG_MAPPING
    "n_group": Known(GROUPED, (1,)),
    "partial_rotary_factor": Known(("glm4", "glm4_moe", "minimax_m2", "phi3", *QWEN_PARTLY), (1,)),
    "routed_scaling_factor": Known(GROUPED, (1,)),
    "scoring_func": Known(("minimax_m2", *GROUPED), ("softmax",)),
    "topk_group": Known(GROUPED, (1,)),
    "use_qk_norm": Known(("gemma3_text", "glm4_moe", "minimax_m2", *QWEN_NORMED, *QWEN_PARTLY), (False,)),
    # vLLM 0.32: model_executor/models, transformers_utils/config.py
    "attention_chunk_size": Known(),
    "attn_output_gate": Known(nothing=(True,)),
    "bias": Known(nothing=(False,)),
    "dual_chunk_attention_config": Known(),
    "is_causal": Known(nothing=(True,)),
    "layer_scale": Known(nothing=(False,)),
    "llama_4_scaling": Known(),
    "logit_scale": Known(nothing=(1,)),
    "qk_norm": Known(nothing=(False,)),
    "qkv_bias": Known(nothing=(False,)),
    "rotary_emb_base": Known(),
    "rotary_emb_fraction": Known(nothing=(1,)),
    "rotary_pct": Known(nothing=(1,)),
    "shared_expert_intermediate_size": Known(QWEN_EXPERTS, (0,)),
    "use_bidirectional_attention": Known(nothing=(False,)),
}
EXPERTS = {
    "num_experts": ("qwen3_moe", "qwen3_vl_moe", *QWEN_EXPERTS),
    "num_local_experts": ("gpt_oss", "minimax_m2", "mixtral", "qwen3_moe", "qwen3_vl_moe"),
    "n_routed_experts": GROUPED,
}
"""The number of experts: each family has it under one of these names, and transformers writes it under two for some."""


def foreign_keys(family: str, config: Mapping[str, Any]) -> list[str]:
    """Those of a config.json that say something of a part that the family does not have, and numbers of experts that contradict each other."""
    foreign = {key: known.nothing for key, known in KEYS.items() if family not in known.families}
    own = {config[key] for key, families in EXPERTS.items() if family in families and config.get(key) is not None}
    foreign |= {key: (0, *own) for key, families in EXPERTS.items() if family not in families}
    foreign |= dict.fromkeys(EXPERTS, ()) if len(own) > 1 else {}
    return [key for key, nothing in foreign.items() if config.get(key) is not None and config[key] not in nothing]
