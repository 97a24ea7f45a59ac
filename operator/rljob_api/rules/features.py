"""What a config.json of a supported family says of its model that would be trained wrongly."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import family_of, rope_of
from rljob_api.family import Family
from rljob_api.rules.engine import Violation
from rljob_api.rules.foreign_keys import QWEN_EXPERTS, foreign_keys
from rljob_api.spec import RLJobSpec

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The only frequencies of this rope scaling that megatron-core has (core/models/common/embeddings/rotary_pos_embedding.py, `_apply_scaling`)."""
PLACES = "mrope_section"
"""What a language model that sees images rotates by time, row and column, in its section of rotary embeddings. Without it no trainer starts, and vLLM
gives images the positions of a text."""
WINDOWED = "sliding_attention"
"""In `layer_types`."""


def feature_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Features of a model, in a supported family, that would be trained wrongly. `num_experts_per_tok` of 1: megatron-core does not make the weight
    of a single expert 1."""
    family = family_of(config)
    rope_type, rope = rope_of(config)
    published = LLAMA3 if rope_type == "llama3" else family.rope if family else {}
    other_frequencies = any(rope.get(key, number) != number for key, number in published.items())
    unusual = {
        "rope_type": family and rope_type not in family.rotations,
        "rope_scaling": other_frequencies
        or (rope_type == "yarn" and (rope.get("attention_factor") or _half_scaled(rope))),
        "rope_parameters": _rope_of_windows(config) != "default",
        "sliding_window": config.get("sliding_window") and config.get("use_sliding_window"),
        "decoder_sparse_step": config.get("decoder_sparse_step", 1) != 1,
        "attention_bias": config.get("attention_bias") and not (family and family.biases),
        "layer_types": family and _windowed_otherwise(family, config),
        "num_experts_per_tok": config.get("num_experts_per_tok") == 1,
        "n_shared_experts": config.get("n_shared_experts") == 0,
        "shared_expert_intermediate_size": _without_shared_expert(family, config),
        "qk_head_dim": config.get("qk_head_dim", _rotated_and_not(config)) != _rotated_and_not(config),
        "topk_group": _groups_of_experts(config),
        "rotary_dim": _rotated_otherwise(config, rope),
        "mlp_layer_types": _mixed_otherwise(config),
        **{key: config.get(key) for key in ("mlp_only_layers", "mlp_bias", "per_layer_config", "quantization_config")},
        **{key: config.get(key, values[0]) not in values for key, values in (family.values if family else {}).items()},
    }
    foreign = foreign_keys(family.model_type, config) if family else []
    for key in dict.fromkeys([*(key for key, broken in unusual.items() if broken), *foreign]):
        value = config.get(key, rope_type)
        yield Violation(
            "spec.model.path", spec.model.path, f"its {key} = {value} is not supported", "use another model"
        )
    missing = [key for key in family.required if config.get(key) is None] if family else []
    if family and family.vision and rope.get(PLACES) is None:
        missing.append(PLACES)
    for key in missing:
        rule, fix = f"its config.json has no {key}", "restore the file from where the model was published"
        yield Violation("spec.model.path", spec.model.path, rule, fix)


def _half_scaled(rope: dict[str, Any]) -> bool:
    """Whether YaRN's scale of attention has one of its two numbers only: transformers then takes neither, megatron-core the one."""
    given = [rope.get("mscale"), rope.get("mscale_all_dim")]
    return given != [None, None] and not all(given)


def _rope_of_windows(config: dict[str, Any]) -> str:
    """The rope type of the layers with windows, where they have numbers of their own."""
    local = (config.get("rope_parameters") or {}).get(WINDOWED) or {}
    return next(
        (str(local[key]) for key in ("rope_type", "type") if local.get(key) not in (None, "default")), "default"
    )


def _windowed_otherwise(family: Family, config: dict[str, Any]) -> bool:
    """Whether `layer_types` names other layers with windows than megatron-bridge has them in: all but each so many-th, or else all or none. vLLM's
    Llama and Mistral read it, transformers' do not."""
    kinds, every = config.get("layer_types"), family.windows_but
    if not kinds or family.states or family.sparse:
        return False
    everywhere = family.windows and bool(config.get("sliding_window"))
    windowed = [i % every > 0 if every else everywhere for i in range(1, len(kinds) + 1)]
    return list(kinds) != [WINDOWED if one else "full_attention" for one in windowed]


def _rotated_and_not(config: dict[str, Any]) -> int:
    """Numbers of a head of latent attention, in queries and keys."""
    return (config.get("qk_nope_head_dim") or 0) + (config.get("qk_rope_head_dim") or 0)


def _rotated_otherwise(config: dict[str, Any], rope: dict[str, Any]) -> bool:
    """Whether `rotary_dim`, the numbers of a head that are rotated, and the share of a head that they are say different things."""
    share, number = rope.get("partial_rotary_factor"), config.get("rotary_dim")
    return number is not None and share is not None and number != share * (config.get("head_dim") or 0)


def _mixed_otherwise(config: dict[str, Any]) -> bool:
    """Whether `mlp_layer_types` names other layers without experts than the first ones, of which there are `first_k_dense_replace`."""
    kinds, dense = config.get("mlp_layer_types"), config.get("first_k_dense_replace") or 0
    return kinds is not None and list(kinds) != ["dense"] * dense + ["sparse"] * (len(kinds) - dense)


def _without_shared_expert(family: Family | None, config: dict[str, Any]) -> bool:
    """Whether a model of a family in which all have a shared expert has none. Qwen3-Coder says so, of a family without."""
    shared = family is not None and family.model_type in QWEN_EXPERTS
    return shared and config.get("shared_expert_intermediate_size") == 0


def _groups_of_experts(config: dict[str, Any]) -> bool:
    """Whether megatron-core would rank groups of experts by another number of their experts than DeepSeek-V3, which takes the best two. It takes
    num_experts_per_tok / topk_group (core/transformer/moe/moe_utils.py, `group_limited_topk`)."""
    groups, chosen = config.get("n_group") or 1, config.get("topk_group") or 1
    return groups > 1 and (config.get("num_experts_per_tok") or 0) // chosen != 2
