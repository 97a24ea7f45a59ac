"""Values of a Hugging Face config.json that rules and estimates compute with: one of another type or size is named before anything is computed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rljob_api.families import language_of
from rljob_api.indexers import FULL, LETTERS, SHARED, scheduled_indexers

MOST = 10**8
"""The largest number that any of them may have."""
FROM_ONE = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("intermediate_size", "moe_intermediate_size", "max_position_embeddings"),
    *("full_attention_interval", "rotary_dim", "index_topk_freq"),
    *("n_group", "topk_group"),
)
FROM_ZERO = (
    *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_shared_experts"),
    *("first_k_dense_replace", "q_lora_rank", "kv_lora_rank", "index_skip_topk_offset"),
    "shared_expert_intermediate_size",
)
OF_LATENTS = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""What the model of a config.json with `kv_lora_rank` is computed from as well."""
OF_INDEXERS = ("index_n_heads", "index_head_dim", "index_topk")
"""What the model of a family with sparse attention is computed from as well."""
OF_DELTA_NETS = (
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    "linear_conv_kernel_dim",
)
"""What the model of a family with gated delta nets is computed from as well."""
OF_THE_TOWER = (
    *("depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "in_channels", "in_chans"),
    *("patch_size", "temporal_patch_size", "spatial_merge_size", "num_position_embeddings"),
)
OF_ROPE = ("factor", "original_max_position_embeddings", "partial_rotary_factor")
OF_ROPE_OR_ABOVE = ("original_max_position_embeddings", "partial_rotary_factor", "rope_theta")
"""Numbers of rotary embeddings that may also stand next to the others."""
ROPES = ("rope_parameters", "rope_scaling")
"""Names of the section that has them, since transformers 5 and before."""
TURNED = {"qwen3_vl_moe": ("moe_intermediate_size", (1, 2)), "gpt_oss": ("intermediate_size", (2,))}
"""Families whose files have experts' matrices [in, out], where others have [out, in], by model_type: the key of an expert's width, and which
multiples of it are sides of matrices that megatron-bridge turns by their shape."""
SECTIONS = ("text_config", "vision_config", *ROPES)


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
        *_counts(language, (*FROM_ONE, *OF_LATENTS, *OF_INDEXERS, *OF_DELTA_NETS), 1),
        *_counts(language, FROM_ZERO, 0),
        *_width(language),
        *_dense_layers(language),
        *_groups(language),
        *_layer_types(language),
        *_indexers(language),
        *_schedule(language),
        *_tower(config.get("vision_config") or {}, language),
        *(one for key in ROPES for one in _rope(key, language.get(key))),
    ]


def contradictions(config: Mapping[str, Any]) -> list[Unfit]:
    """What transformers, vLLM and megatron-bridge read each in its own way: numbers of rotary embeddings that a file says twice, each time otherwise,
    and experts whose matrices are square. `config`: without values that are unfit."""
    language = language_of(dict(config))
    return [*_square(config.get("model_type"), language), *_ropes_said_twice(language)]


def _square(kind: str | None, language: Mapping[str, Any]) -> Iterator[Unfit]:
    """megatron-bridge turns a matrix of an expert if its shape is the other one. Of a square one it cannot see that, and rows would be columns."""
    key, times = TURNED.get(kind or "", ("", ()))
    width, hidden = language.get(key), language.get("hidden_size")
    if width and any(width * count == hidden for count in times):
        square = " or ".join(f"{hidden} / {count}" if count > 1 else str(hidden) for count in times)
        yield Unfit(key, width, f"must not be {square}: with hidden_size = {hidden} a matrix of an expert is square")


def _ropes_said_twice(language: Mapping[str, Any]) -> list[Unfit]:
    given = [(key, language[key]) for key in ROPES if language.get(key)]
    if len(given) == 2 and given[0][1] != given[1][1]:
        return [Unfit(*given[0], f"must be the same as {given[1][0]} = {given[1][1]}: leave one of them out")]
    return [one for key, rope in given for one in _said_twice(language, key, rope.get("full_attention") or rope)]


def _said_twice(language: Mapping[str, Any], key: str, rope: Mapping[str, Any]) -> Iterator[Unfit]:
    for name in (name for name in OF_ROPE_OR_ABOVE if None not in (language.get(name), rope.get(name))):
        if language[name] != rope[name]:
            yield Unfit(name, language[name], f"must be {rope[name]}, as {key}.{name} is")
    new, old = rope.get("rope_type"), rope.get("type")
    if new and old and new != old and (new, old) != ("default", "mrope"):
        yield Unfit(f"{key}.type", old, f"must be {new}, as {key}.rope_type is")


def _counts(section: Mapping[str, Any], keys: tuple[str, ...], low: int, prefix: str = "") -> Iterator[Unfit]:
    rule = f"must be a whole number from {low} to {MOST}"
    given = ((key, section[key]) for key in keys if section.get(key) is not None)
    yield from (Unfit(f"{prefix}{key}", value, rule) for key, value in given if not _is_count(value, low))


def _is_count(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= MOST


def _width(language: Mapping[str, Any]) -> Iterator[Unfit]:
    hidden, heads = language.get("hidden_size", 0), language.get("num_attention_heads", 0)
    if language.get("head_dim") is not None or not (_is_count(hidden, 1) and _is_count(heads, 1)):
        return
    if hidden < heads:
        rule = f"must be at least num_attention_heads = {heads}: a head is hidden_size / num_attention_heads wide, where head_dim is not given"
        yield Unfit("hidden_size", hidden, rule)


def _dense_layers(language: Mapping[str, Any]) -> Iterator[Unfit]:
    dense, layers = language.get("first_k_dense_replace") or 0, language.get("num_hidden_layers") or MOST
    if _is_count(dense, 0) and _is_count(layers, 1) and dense > layers:
        yield Unfit("first_k_dense_replace", dense, f"must be at most num_hidden_layers = {layers}")


def _groups(language: Mapping[str, Any]) -> Iterator[Unfit]:
    groups, chosen = language.get("n_group") or 1, language.get("topk_group") or 1
    if _is_count(groups, 1) and _is_count(chosen, 1) and chosen > groups:
        yield Unfit(
            "topk_group", chosen, f"must be at most n_group = {groups}: experts are chosen from so many groups of them"
        )


def _layer_types(language: Mapping[str, Any]) -> Iterator[Unfit]:
    kinds, layers = language.get("layer_types"), language.get("num_hidden_layers")
    if kinds is None:
        return
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        yield Unfit("layer_types", kinds, "must be a list of texts")
    elif _is_count(layers, 1) and len(kinds) != layers:
        yield Unfit("layer_types", f"{len(kinds)} layers", f"must name num_hidden_layers = {layers}")


def _indexers(language: Mapping[str, Any]) -> Iterator[Unfit]:
    layers = language.get("num_hidden_layers")
    words = {"indexer_types": (FULL, SHARED), "index_topk_pattern": tuple(LETTERS)}
    for key, allowed in ((key, words[key]) for key in words if language.get(key) is not None):
        value = language[key]
        if not isinstance(value, list | str) or not all(one in allowed for one in value):
            yield Unfit(key, value, f"must name {' or '.join(allowed)} for each layer")
        elif _is_count(layers, 1) and len(value) != layers:
            yield Unfit(key, f"{len(value)} layers", f"must name num_hidden_layers = {layers}")
        elif [*value][:1] != [allowed[0]]:
            yield Unfit(key, value, "must give the first layer an indexer of its own")


def _schedule(language: Mapping[str, Any]) -> Iterator[Unfit]:
    """Where no list names them, the layers with indexers begin with the first one."""
    every, offset = language.get("index_topk_freq"), language.get("index_skip_topk_offset")
    counts = [_is_count(value, low) for value, low in ((every, 1), (offset, 0)) if value is not None]
    if language.get("index_topk_pattern") or not all(counts):
        return
    if scheduled_indexers(dict(language) | {"num_hidden_layers": 1}) != [FULL]:
        why = "the layers before it have indexers, and the first layer of all has no earlier one whose tokens it could take"
        yield Unfit("index_skip_topk_offset", offset, f"must be from 1 with index_topk_freq = {every}: {why}")


def _tower(vision: Mapping[str, Any], language: Mapping[str, Any]) -> Iterator[Unfit]:
    yield from _counts(vision, OF_THE_TOWER, 1, "vision_config.")
    for key in (key for key in ("in_channels", "in_chans") if vision.get(key, 3) not in (3, None)):
        yield Unfit(f"vision_config.{key}", vision[key], "must be 3: pictures have three colours")
    yield from _heads_of_tower(vision.get("num_heads"), vision.get("hidden_size"))
    for key in (key for key in ROPES if not isinstance(vision.get(key), dict | None)):
        yield Unfit(f"vision_config.{key}", vision[key], "must be a mapping")
    out, hidden = vision.get("out_hidden_size"), language.get("hidden_size")
    if None not in (out, hidden) and out != hidden:
        yield Unfit("vision_config.out_hidden_size", out, f"must be {hidden}, the hidden_size of the language model")
    layers = vision.get("deepstack_visual_indexes")
    if not isinstance(layers, list | None):
        yield Unfit("vision_config.deepstack_visual_indexes", layers, "must be a list")
    elif layers:
        yield from _deepstack(layers, vision.get("depth"), language.get("num_hidden_layers"))


def _heads_of_tower(heads: Any, hidden: Any) -> Iterator[Unfit]:
    """Row and column of a patch rotate a half of a head each, by pairs of its numbers."""
    if _is_count(heads, 1) and _is_count(hidden, 1) and hidden % (4 * heads):
        rule = f"must divide hidden_size = {hidden} into heads of a multiple of 4 numbers"
        yield Unfit("vision_config.num_heads", heads, rule)


def _deepstack(layers: list[Any], depth: Any, below: Any) -> Iterator[Unfit]:
    """What some layers of the tower see is added behind the first layers of the language model, one for each."""
    key = "vision_config.deepstack_visual_indexes"
    if _is_count(depth, 1) and not all(_is_count(one, 0) and one < depth for one in layers):
        yield Unfit(key, layers, f"must name layers of the tower, from 0 to {depth - 1}")
    elif len({*map(str, layers)}) < len(layers):
        yield Unfit(key, layers, "must name each layer once")
    elif _is_count(below, 1) and len(layers) > below:
        yield Unfit(key, layers, f"must name at most num_hidden_layers = {below} layers")


def _rope(key: str, rope: Any) -> Iterator[Unfit]:
    if not isinstance(rope, dict | None):
        yield Unfit(key, rope, "must be a mapping")
        return
    rope = rope or {}
    sections = [name for name in ("full_attention", "sliding_attention") if not isinstance(rope.get(name), dict | None)]
    if sections:
        yield Unfit(f"{key}.{sections[0]}", rope[sections[0]], "must be a mapping")
        return
    numbers = rope.get("full_attention") or rope
    for name in (name for name in OF_ROPE if numbers.get(name) is not None):
        if not _is_positive(numbers[name]):
            yield Unfit(f"{key}.{name}", numbers[name], f"must be a number above 0, at most {MOST}")
    parts = numbers.get("mrope_section")
    if parts is not None and not (isinstance(parts, list) and all(_is_count(one, 0) for one in parts)):
        yield Unfit(f"{key}.mrope_section", parts, f"must be a list of whole numbers from 0 to {MOST}")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= MOST
