"""Values of a Hugging Face config.json that rules and estimates compute with: one of another type or size is named before anything is computed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rljob_api.families import language_of

MOST = 10**8
"""The largest number that any of them may have."""
FROM_ONE = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("intermediate_size", "moe_intermediate_size", "max_position_embeddings"),
    *("shared_expert_intermediate_size", "full_attention_interval"),
)
FROM_ZERO = (
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts"),
    *("first_k_dense_replace", "n_group", "topk_group", "q_lora_rank", "kv_lora_rank"),
)
OF_LATENTS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""What the model of a config.json with `kv_lora_rank` is computed from as well."""
OF_DELTA_NETS = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)
"""What the model of a family with gated delta nets is computed from as well."""
OF_THE_TOWER = (
    *("depth", "hidden_size", "intermediate_size", "out_hidden_size", "in_channels", "in_chans", "patch_size"),
    *("temporal_patch_size", "spatial_merge_size", "num_position_embeddings"),
)
OF_ROPE = ("factor", "original_max_position_embeddings")
SECTIONS = ("text_config", "vision_config", "rope_scaling", "rope_parameters")


class Unfit(NamedTuple):
    """A value that its key cannot have."""

    key: str
    value: Any
    rule: str


def unfit(config: Mapping[str, Any]) -> list[Unfit]:
    """All such values of a config.json. A key that is null or not there is left to those who need it."""
    kind = config.get("model_type")
    wrong = [Unfit("model_type", kind, "must be a text")] if not isinstance(kind, str | None) else []
    wrong += [
        Unfit(key, config[key], "must be a mapping") for key in SECTIONS if not isinstance(config.get(key), dict | None)
    ]
    if wrong:
        return wrong
    language = language_of(dict(config))
    return [
        *_counts(language, (*FROM_ONE, *OF_LATENTS, *OF_DELTA_NETS), 1),
        *_counts(language, FROM_ZERO, 0),
        *_dense_layers(language),
        *_layer_types(language),
        *_tower(config.get("vision_config") or {}),
        *(one for key in ("rope_parameters", "rope_scaling") for one in _rope(key, language.get(key))),
    ]


def _counts(section: Mapping[str, Any], keys: tuple[str, ...], low: int, prefix: str = "") -> Iterator[Unfit]:
    rule = f"must be a whole number from {low} to {MOST}"
    given = ((key, section[key]) for key in keys if section.get(key) is not None)
    yield from (Unfit(f"{prefix}{key}", value, rule) for key, value in given if not _is_count(value, low))


def _is_count(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= MOST


def _dense_layers(language: Mapping[str, Any]) -> Iterator[Unfit]:
    dense, layers = language.get("first_k_dense_replace") or 0, language.get("num_hidden_layers") or MOST
    if _is_count(dense, 0) and _is_count(layers, 1) and dense > layers:
        yield Unfit("first_k_dense_replace", dense, f"must be at most num_hidden_layers = {layers}")


def _layer_types(language: Mapping[str, Any]) -> Iterator[Unfit]:
    kinds, layers = language.get("layer_types"), language.get("num_hidden_layers")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        yield Unfit("layer_types", kinds, "must be a list of texts")
    elif _is_count(layers, 1) and len(kinds) != layers:
        yield Unfit("layer_types", f"{len(kinds)} layers", f"must name num_hidden_layers = {layers}")


def _tower(vision: Mapping[str, Any]) -> Iterator[Unfit]:
    yield from _counts(vision, OF_THE_TOWER, 1, "vision_config.")
    layers = vision.get("deepstack_visual_indexes")
    if not isinstance(layers, list | None):
        yield Unfit("vision_config.deepstack_visual_indexes", layers, "must be a list")


def _rope(key: str, rope: Any) -> Iterator[Unfit]:
    if not isinstance(rope, dict | None):
        yield Unfit(key, rope, "must be a mapping")
        return
    everywhere = (rope or {}).get("full_attention")
    if not isinstance(everywhere, dict | None):
        yield Unfit(f"{key}.full_attention", everywhere, "must be a mapping")
        return
    numbers = everywhere or rope or {}
    for name in (name for name in OF_ROPE if numbers.get(name) is not None):
        if not _is_positive(numbers[name]):
            yield Unfit(f"{key}.{name}", numbers[name], f"must be a number above 0, at most {MOST}")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= MOST
