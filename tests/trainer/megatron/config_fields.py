"""Other values for each field of a Hugging Face configuration, one at a time."""

from collections.abc import Iterator
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
}
"""For fields that are None. Others that are None are numbers of tokens or sizes."""
LAYERS = ("full_attention", "sliding_attention")
FREQUENCIES = {"factor": 2.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE: dict[str, tuple[Any, ...]] = {
    "rope_type": ("linear", "dynamic", "yarn", "llama3"),
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
APART = ("model_type", "architectures", "vision_config", "return_dict", "output_attentions", "output_hidden_states")
"""What a model is, and what transformers returns."""


class Change(NamedTuple):
    """Of one field."""

    name: str
    config: dict[str, Any]
    """The whole configuration with it."""


def changes(config: dict[str, Any]) -> Iterator[Change]:
    """Each alone. `config`: of a language model, or with one in the section `text_config`."""
    for key, value in config.items():
        if key == "text_config":
            yield from (Change(f"{key}.{name}", config | {key: text}) for name, text in changes(value))
        elif key == "rope_parameters":
            yield from (Change(f"{key}.{name}", config | {key: rope}) for name, rope in _rotations(value))
        elif key not in APART:
            yield from (Change(f"{key} = {other}", config | {key: other}) for other in _others(key, value))


def _rotations(rope: dict[str, Any]) -> Iterator[Change]:
    """Numbers of rotary embeddings, of each kind of layers alone where kinds have their own."""
    kinds = [key for key in LAYERS if key in rope]
    for kind in kinds:
        yield from (Change(f"{kind}.{name}", rope | {kind: own}) for name, own in _rotations(rope[kind]))
    for key in () if kinds else ROPE:
        for value in (value for value in ROPE[key] if rope.get(key) != value):
            needed = FREQUENCIES if key == "rope_type" else {}
            yield Change(f"{key} = {value}", rope | needed | {key: value})


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
