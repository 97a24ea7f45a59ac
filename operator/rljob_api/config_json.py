"""Values of a Hugging Face config.json that rules and estimates compute with: one of another type or size is named before anything is computed. And
the sizes of layers that have something else than plain attention."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rljob_api.families import has_delta_nets, language_of
from rljob_api.indexers import FULL, LETTERS, SHARED, indexers_of, scheduled_indexers

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
    """Numbers of rotary embeddings that a file says twice, each time otherwise: transformers, vLLM and megatron-bridge take one or the other.
    `config`: without values that are unfit."""
    language = language_of(dict(config))
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


INTERVAL = 4
"""Of this many layers the last one has attention, unless a config.json says otherwise: transformers' default for models with delta nets."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values are made of short vectors."""

    query: int
    """Width of a token's vector for queries; 0: queries are made of the hidden state."""
    key_value: int
    """Width of a token's vector for keys and values."""
    content: int
    """Width of the part of a head's query and key that is not rotated."""
    rotated: int
    """Width of the part that is rotated (RoPE)."""
    value: int
    """Width of a head's value."""
    index_heads: int = 0
    """Heads of the indexer that chooses the tokens of sparse attention; 0: a query attends to all before it."""
    index_head: int = 0
    """Width of one of its heads."""
    chosen: int = 0
    """Tokens that it chooses for a query."""
    indexed: float = 1.0
    """Share of the layers that have one of their own."""

    @staticmethod
    def of(config: dict[str, Any]) -> "Latent | None":
        """None: the model has plain attention."""
        if not config.get("kv_lora_rank"):
            return None
        return Latent(
            query=config.get("q_lora_rank") or 0,
            key_value=config["kv_lora_rank"],
            content=config["qk_nope_head_dim"],
            rotated=config["qk_rope_head_dim"],
            value=config["v_head_dim"],
            index_heads=config.get("index_n_heads") or 0,
            index_head=config.get("index_head_dim") or 0,
            chosen=config.get("index_topk") or 0,
            indexed=indexers_of(config).count(FULL) / config["num_hidden_layers"],
        )

    def parameters(self, hidden: int, heads: int) -> float:
        """Parameters of one layer's attention: projections into the vectors, out of them, and of the output; those of an indexer, as the mean of all
        layers."""
        wide = heads * (self.content + self.rotated)
        queries = (hidden + wide) * self.query if self.query else hidden * wide
        into, out = hidden * (self.key_value + self.rotated), self.key_value * heads * (self.content + self.value)
        index = self.query * self.index_heads * self.index_head + hidden * (self.index_head + self.index_heads)
        return queries + into + out + heads * self.value * hidden + self.indexed * index


@dataclass(frozen=True, slots=True)
class DeltaNets:
    """Gated delta nets (arXiv 2412.06464) in place of the attention of some layers. Each head has a state of keys x values in place of a cache."""

    layers: int
    """Number of layers that have one."""
    keys: int
    """Width of all heads' keys, and of all heads' queries."""
    values: int
    """Width of all heads' values, and of the gate of the output."""
    heads: int
    """Heads of values, each with a decay and a rate of its own."""
    window: int
    """Tokens that the convolution in front of queries, keys and values sees."""

    @staticmethod
    def of(config: dict[str, Any]) -> "DeltaNets | None":
        """None: the model has none."""
        if not has_delta_nets(config):
            return None
        return DeltaNets(
            layers=layers_with_delta_nets(config),
            keys=config["linear_num_key_heads"] * config["linear_key_head_dim"],
            values=config["linear_num_value_heads"] * config["linear_value_head_dim"],
            heads=config["linear_num_value_heads"],
            window=config["linear_conv_kernel_dim"],
        )

    def parameters(self, hidden: int) -> int:
        """Parameters of one layer's: projections into queries, keys, values, the gate, decays and rates; the convolution; the output."""
        into = 2 * self.keys + 2 * self.values + 2 * self.heads
        return hidden * (into + self.values) + self.window * (2 * self.keys + self.values)

    @property
    def computed(self) -> int:
        """Numbers per token that one layer computes: queries, keys and values before and after the convolution, the gate and the output."""
        return 2 * (2 * self.keys + self.values) + 2 * self.values


def layers_with_delta_nets(config: dict[str, Any]) -> int:
    """Number of layers of a config.json's model that have delta nets."""
    layers = config["num_hidden_layers"]
    if kinds := config.get("layer_types"):
        return sum(kind == "linear_attention" for kind in kinds[:layers])
    return layers - layers // (config.get("full_attention_interval") or INTERVAL)
