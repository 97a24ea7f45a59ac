"""Other values for each field of a Hugging Face configuration, and for fields that it could have."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

WORDS = {
    "hidden_act": ("gelu_pytorch_tanh", "relu"),
    "hidden_activation": ("silu", "gelu"),
    "scoring_func": ("softmax", "sigmoid"),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    "qk_norm_type": ("per_head",),
}
"""For fields that hold a name."""
ABSENT = {
    "final_logit_softcapping": (3.0,),
    "attn_logit_softcapping": (1.0,),
    "sliding_window": (4,),
    "mlp_only_layers": ([1],),
    "q_lora_rank": (24,),
    "head_dim": (32,),
}
"""For fields that are None. Others that are None are numbers of tokens or sizes."""
LAYERS = ("full_attention", "sliding_attention")
FREQUENCIES = {"factor": 2.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE: dict[str, tuple[Any, ...]] = {
    "rope_type": ("linear", "dynamic", "yarn", "llama3"),
    "type": ("yarn",),
    "rope_theta": (333.0,),
    "partial_rotary_factor": (0.5, 1.0),
    "factor": (3.0,),
    "attention_factor": (1.7,),
    "beta_fast": (16.0,),
    "beta_slow": (2.0,),
    "mscale": (0.5,),
    "mscale_all_dim": (0.5,),
    "truncate": (False,),
    "original_max_position_embeddings": (16,),
    "low_freq_factor": (2.0,),
    "high_freq_factor": (8.0,),
    "mrope_interleaved": (True, False),
    "mrope_section": ([4, 2, 2],),
}
"""Numbers of rotary embeddings: those that are there, and those that another kind has."""
SECTIONS = ("text_config", "vision_config", "rope_parameters", *LAYERS)
APART = (
    *("model_type", "architectures", "initializer_range"),
    *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("return_dict", "output_attentions", "output_hidden_states"),
)
"""What a model is, how its weights were drawn, how tokens are named that samples have, and what transformers returns."""


class Setting(NamedTuple):
    """Another value of one field."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} = {self.value}"


def settings(config: dict[str, Any], section: tuple[str, ...] = ()) -> Iterator[Setting]:
    """`config`: of a model, or that of its `section`."""
    for key, value in config.items():
        path = (*section, key)
        if key == "rope_parameters":
            yield from _rotations(value, path)
        elif key in SECTIONS and value:
            yield from settings(value, path)
        elif key not in APART:
            yield from (Setting(path, other) for other in _others(key, value))


def with_settings(config: dict[str, Any], changed: Iterable[Setting]) -> dict[str, Any]:
    """A configuration in which those fields have those values. A rope type brings the numbers that it cannot do without."""
    for path, value in changed:
        config = _with_value(config, path, value)
    return config


def _with_value(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    key, *inner = path
    if inner:
        return config | {key: _with_value(config.get(key) or {}, tuple(inner), value)}
    return (FREQUENCIES if key == "rope_type" else {}) | config | {key: value}


def _rotations(rope: dict[str, Any], path: tuple[str, ...]) -> Iterator[Setting]:
    """Numbers of rotary embeddings, of each kind of layers alone where kinds have their own."""
    kinds = [key for key in LAYERS if key in rope]
    for kind in kinds:
        yield from _rotations(rope[kind], (*path, kind))
    for key in () if kinds else ROPE:
        yield from (Setting((*path, key), value) for value in ROPE[key] if rope.get(key) != value)


def _others(key: str, value: Any) -> Iterator[Any]:
    if key in WORDS:
        yield from (word for word in WORDS[key] if word != value)
    elif value is None:
        yield from ABSENT.get(key, ())
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2, value // 2)
    elif isinstance(value, float):
        yield from (value * 3, value / 2 or 0.25)
    elif isinstance(value, list) and "attention" in str(value):
        yield from _layers(value)


def _layers(kinds: list[str]) -> Iterator[list[str]]:
    """In another order, and all of one kind."""
    yield kinds[::-1]
    yield from ([kind] * len(kinds) for kind in {*kinds, *LAYERS} if [kind] * len(kinds) != kinds)


FOREIGN: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (0.5, 1.0),
    "rope_theta": (333.0,),
    "rope_scaling": (
        {"rope_type": "linear", "factor": 2.0},
        {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
    ),
    "original_max_position_embeddings": (16,),
    "rotary_dim": (8,),
    "rope_interleave": (True, False),
    "attention_bias": (True,),
    "mlp_bias": (True,),
    "use_qk_norm": (True, False),
    "scoring_func": ("softmax", "sigmoid"),
    "topk_method": ("greedy", "noaux_tc"),
    "n_group": (2,),
    "topk_group": (2,),
    "routed_scaling_factor": (1.5,),
    "norm_topk_prob": (True, False),
    "num_experts": (4,),
    "n_shared_experts": (1, 2),
    "shared_expert_intermediate_size": (24,),
    "moe_intermediate_size": (48,),
    "moe_layer_freq": (1, 2),
    "decoder_sparse_step": (2,),
    "mlp_only_layers": ([1],),
    "first_k_dense_replace": (1,),
    "num_nextn_predict_layers": (1,),
    "mtp_num_hidden_layers": (1,),
    "sliding_window": (4,),
    "use_sliding_window": (True,),
    "max_window_layers": (2,),
    "full_attention_interval": (2,),
    "final_logit_softcapping": (3.0,),
    "attn_logit_softcapping": (1.0,),
    "query_pre_attn_scalar": (48,),
    "swiglu_limit": (0.5,),
    "logit_scale": (0.5,),
    "logits_scaling": (2.0,),
    "embedding_multiplier": (2.0,),
    "attention_multiplier": (0.5,),
    "residual_multiplier": (0.5,),
    "hidden_activation": ("relu",),
    "layer_norm_eps": (0.1,),
    "head_dim": (32,),
}
"""Fields that other families have, and other tools write."""


def foreign(config: dict[str, Any]) -> Iterator[Setting]:
    """Fields of FOREIGN that a configuration lacks, in the section of its language model."""
    section = ("text_config",) if "text_config" in config else ()
    own = config.get("text_config", config)
    for key, values in FOREIGN.items():
        if key not in own:
            yield from (Setting((*section, key), value) for value in values)
