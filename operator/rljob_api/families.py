"""The families of models that a job can train, and what is proven for each. Validation, sizing and docs/models.md use this table, and the tests
iterate over it (tests/trainer/megatron/test_families.py, tests/trainer/server/test_families.py): a line that they do not cover fails."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rljob_api.family import ADAPTED, ATTENTION, EXPERTS, TENSOR, Family

SILU = {"hidden_act": ("silu",)}
UNTIED = SILU | {"tie_word_embeddings": (False,)}
SIGMOID_ROUTING = UNTIED | {
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True,),
    "scoring_func": ("sigmoid",),
    "moe_layer_freq": (1,),
}
"""Values with which DeepSeek-V3 and its relatives choose experts: the only ones that are proven."""
WHOLE_PAIRS = {"truncate": True}
"""YaRN's limits are rounded to whole pairs of numbers: megatron-core has no others for latent attention."""
FAMILIES = {
    family.model_type: family
    for family in (
        Family(
            "llama",
            "Llama 2, 3, 3.1 to 3.3",
            rotations=("default", "linear", "llama3", "yarn"),
            adapters=ADAPTED,
            tools="llama3_json",
        ),
        Family("mistral", "Mistral 7B, Nemo, Small", windows=True, adapters=ADAPTED, values=SILU, tools="mistral"),
        Family("phi3", "Phi-3, Phi-4", windows=True, adapters=ADAPTED, fused=True, tools="phi4_mini_json"),
        Family(
            "qwen2",
            "Qwen2, Qwen2.5",
            rotations=("default", "yarn"),
            biases=True,
            adapters=ADAPTED,
            tools="hermes",
        ),
        Family("qwen2_5_vl", "Qwen2.5-VL", TENSOR, vision=True, tools="hermes"),
        Family("qwen3_vl", "Qwen3-VL 2B, 4B, 8B, 32B", TENSOR, vision=True, tools="hermes"),
        Family("qwen3_vl_moe", "Qwen3-VL 30B-A3B, 235B-A22B", ("tensor", "expert"), vision=True, tools="hermes"),
        Family(
            "qwen3",
            "Qwen3",
            rotations=("default", "yarn"),
            adapters=ADAPTED,
            guesses=("eagle3", "ngram"),
            guesses_on_gpus=("eagle3", "ngram"),
            tools="hermes",
        ),
        Family(
            "qwen3_moe",
            "Qwen3-MoE",
            EXPERTS,
            rotations=("default", "yarn"),
            adapters=ATTENTION,
            tools="hermes",
        ),
        Family(
            "qwen3_next",
            "Qwen3-Next",
            EXPERTS,
            states=True,
            servers=("gpu",),
            values=SILU | {"norm_topk_prob": (True,), "partial_rotary_factor": (0.25,)},
            rope={"partial_rotary_factor": 0.25},
            tools="hermes",
        ),
        Family(
            "qwen3_5",
            "Qwen3.5, dense",
            TENSOR,
            states=True,
            language="qwen3_5_text",
            vision=True,
            servers=("gpu",),
            values=SILU,
            tools="qwen3_coder",
        ),
        Family(
            "qwen3_5_moe",
            "Qwen3.5 with experts",
            ("tensor", "expert"),
            states=True,
            language="qwen3_5_moe_text",
            vision=True,
            servers=("gpu",),
            values=SILU,
            tools="qwen3_coder",
        ),
        Family(
            "qwen3_5_text", "Qwen3.5, dense, of text", states=True, servers=("gpu",), values=SILU, tools="qwen3_coder"
        ),
        Family(
            "qwen3_5_moe_text",
            "Qwen3.5 with experts, of text",
            EXPERTS,
            states=True,
            servers=("gpu",),
            values=SILU,
            tools="qwen3_coder",
        ),
        Family(
            "gemma3_text",
            "Gemma 3 of text: 270M, 1B",
            windows=True,
            windows_but=6,
            adapters=ADAPTED,
            values={
                "attn_logit_softcapping": (None,),
                "final_logit_softcapping": (None,),
                "sliding_window_pattern": (6,),
                "tie_word_embeddings": (True,),
                "use_bidirectional_attention": (False,),
                "use_qk_norm": (True,),
            },
            rope={"factor": 1.0},
        ),
        Family("mixtral", "Mixtral", EXPERTS, windows=True, adapters=ATTENTION, tools="mistral"),
        Family(
            "glm4",
            "GLM-4-0414 9B, 32B; GLM-Z1",
            biases=True,
            adapters=("linear_qkv", "linear_proj", "linear_fc2"),
            together="gate and up",
            values=SILU,
        ),
        Family(
            "glm4_moe",
            "GLM-4.5, GLM-4.5-Air, GLM-4.6",
            EXPERTS,
            biases=True,
            adapters=ATTENTION,
            multi_token=True,
            guesses=("mtp",),
            guesses_on_gpus=("mtp",),
            values=UNTIED | {"n_shared_experts": (1,), "norm_topk_prob": (True,), "partial_rotary_factor": (0.5,)},
            rope={"partial_rotary_factor": 0.5},
            tools="glm45",
        ),
        Family(
            "minimax_m2",
            "MiniMax-M2, M2.1, M2.5, M2.7, in bfloat16",
            EXPERTS,
            adapters=ATTENTION,
            values=UNTIED
            | {
                "qk_norm_type": ("per_layer",),
                "scoring_func": ("sigmoid",),
                "shared_intermediate_size": (0,),
                "use_qk_norm": (True,),
                "use_routing_bias": (True,),
            },
            required=("rotary_dim", "scoring_func", "use_routing_bias"),
            tools="minimax_m2",
        ),
        Family(
            "gpt_oss",
            "gpt-oss 20B and 120B, in bfloat16",
            EXPERTS,
            rotations=("yarn",),
            windows=True,
            windows_but=2,
            biases=True,
            adapters=ATTENTION,
            servers=("gpu",),
            whole_experts=True,
            values=UNTIED | {"attention_bias": (True,), "swiglu_limit": (7.0,)},
            rope={
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": None,
                "mscale_all_dim": None,
                "truncate": False,
            },
            tools="openai",
            reasoning="openai_gptoss",
        ),
        Family(
            "deepseek_v2",
            "DeepSeek-V2-Lite",
            EXPERTS,
            rotations=("default", "yarn"),
            latent=True,
            adapters=("linear_proj",),
            values=UNTIED
            | {
                "topk_method": ("greedy",),
                "n_group": (1,),
                "norm_topk_prob": (False,),
                "scoring_func": ("softmax",),
                "moe_layer_freq": (1,),
            },
            rope=WHOLE_PAIRS,
        ),
        Family(
            "deepseek_v3",
            "DeepSeek-V3, DeepSeek-R1, Moonlight",
            EXPERTS,
            rotations=("default", "yarn"),
            latent=True,
            adapters=("linear_proj",),
            multi_token=True,
            guesses=("mtp",),
            values=SIGMOID_ROUTING | {"rope_interleave": (True,)},
            rope=WHOLE_PAIRS,
            tools="deepseek_v3",
        ),
        Family(
            "kimi_k2",
            "Kimi K2, in bfloat16",
            EXPERTS,
            rotations=("yarn",),
            latent=True,
            adapters=("linear_proj",),
            values=SIGMOID_ROUTING | {"num_nextn_predict_layers": (0,), "rope_interleave": (True,)},
            rope=WHOLE_PAIRS,
            tools="kimi_k2",
        ),
        Family(
            "deepseek_v32",
            "DeepSeek-V3.2, in bfloat16",
            EXPERTS,
            rotations=("default", "yarn"),
            latent=True,
            sparse=True,
            adapters=("linear_proj",),
            servers=("gpu",),
            values=SIGMOID_ROUTING | {"indexer_rope_interleave": (False,)},
            rope=WHOLE_PAIRS,
            required=("scoring_func", "topk_method"),
        ),
        Family(
            "glm_moe_dsa",
            "GLM-5, GLM-5.1, GLM-5.2",
            EXPERTS,
            latent=True,
            sparse=True,
            adapters=("linear_proj",),
            servers=("gpu",),
            values=SIGMOID_ROUTING | {"indexer_rope_interleave": (True,)},
            required=("indexer_rope_interleave", "scoring_func", "topk_method"),
            tools="glm45",
        ),
    )
}


class Refusal(NamedTuple):
    """Of a model that others train."""

    why: str
    fix: str = ""
    """What helps, if not only another model."""


_TOWER = Refusal("its vision tower is not trained")
_BRIDGE = Refusal("megatron-bridge 0.6.2 cannot convert it")
REFUSED = {
    "kimi_k25": _TOWER,
    "kimi_vl": _TOWER,
    "kimi_linear": _BRIDGE,
    "kimi_k3": _BRIDGE,
    "glm5_next": _BRIDGE,
    "minimax": _BRIDGE,
    "deepseek_v4": Refusal("megatron-core 0.19.2 has neither its compressed attention nor its hyper-connections"),
}
"""By `model_type`. Others are no family because nobody has tried them."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Of a config.json; None: its model_type is no family's, or no text."""
    kind = config.get("model_type")
    return FAMILIES.get(kind) if isinstance(kind, str) else None


class ParserNames(NamedTuple):
    """vLLM's names of the parsers that read a response."""

    tools: str
    """Empty: nobody says how calls are written."""
    reasoning: str
    """Empty: reasoning is content like any other."""


def parsers_of(tools: str | None, reasoning: str | None, config: Mapping[str, Any]) -> ParserNames:
    """Those that the spec names, or else those of the family of a config.json."""
    family = family_of(config)
    return ParserNames(tools or (family.tools if family else ""), reasoning or (family.reasoning if family else ""))


def targets_of(targets: Sequence[str] | None, config: dict[str, Any]) -> tuple[str, ...]:
    """Matrices that get adapters in the model of a config.json. `targets` None: all that its family has adapters for."""
    family = family_of(config)
    return tuple(targets) if targets else (family.adapters if family and family.adapters else ADAPTED)


def language_of(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with what it says of its language model at the top, where that of a model with a vision tower may be in a section of its own."""
    kept = {key: config[key] for key in ("model_type", "tie_word_embeddings") if key in config}
    return config | (config.get("text_config") or {}) | kept


def has_latent_attention(config: dict[str, Any]) -> bool:
    """Whether keys and values of a config.json's model come from a latent of `kv_lora_rank` numbers."""
    return bool(config.get("kv_lora_rank"))


def has_sparse_attention(config: dict[str, Any]) -> bool:
    """Whether an indexer chooses the tokens that a query of a config.json's model attends to."""
    family = family_of(config)
    return bool(family and family.sparse)


def has_windows(config: dict[str, Any]) -> bool:
    """Whether some layers of a config.json's model attend to the last tokens only."""
    config = language_of(config)
    family = family_of(config)
    return bool(family and family.windows and config.get("sliding_window"))


def has_delta_nets(config: dict[str, Any]) -> bool:
    """Whether some layers of a config.json's model have gated delta nets in place of attention."""
    family = family_of(config)
    return bool(family and family.states)


def rope_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The rope type of a config.json and its numbers, under the names before and since transformers 5; of the layers that see everything, where
    others have numbers of their own. `mrope` in the files of models that read images is the default of three positions."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope.get("full_attention") or rope
    kind = rope.get("rope_type") or rope.get("type") or "default"
    return "default" if kind == "mrope" else kind, rope
