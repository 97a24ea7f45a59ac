"""The numbers besides its weights with which a model computes, from megatron's configuration of it. Models of the same shapes may differ in them:
Qwen2.5-7B rotates with a base of 1000000, Qwen2.5-Math-7B with 10000."""

from collections.abc import Mapping
from typing import Any

UNREAD = {
    "seq_length", "language_max_sequence_length", "max_position_embeddings",
    "init_method_std", "embedding_init_method_std", "hf_model_id", "hf_model_revision",
    "bos_token_id", "eos_token_id", "pad_token_id", "perform_initialization",
}  # fmt: skip
"""Settings that change no log-probability: initial weights, names, limits and the tokens around a text."""
UNREAD_PREFIXES = ("_", "mtp_")
"""Of megatron's own, and of the layer for multi-token prediction, which a reference is without."""
ACTIVATION = "activation_func"


def first_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The name of one of the `constants` that differs between two models, and its values; None: both compute in the same way."""
    differ = (name for name in sorted(ours.keys() & theirs.keys()) if ours[name] != theirs[name])
    name = next(differ, None)
    return None if name is None else (name, ours[name], theirs[name])


def constants(config: Any) -> dict[str, Any]:
    """By name. Functions and objects are left out: both models get theirs from the same place, except for the activation."""
    settings = vars(config)
    activation = settings.get(ACTIVATION)
    found = {name: value for name, value in settings.items() if is_plain(value) and not is_unread(name)}
    return found | ({ACTIVATION: getattr(activation, "__name__", repr(activation))} if activation else {})


def is_unread(name: str) -> bool:
    return name in UNREAD or name.startswith(UNREAD_PREFIXES)


def is_plain(value: Any) -> bool:
    """Numbers, texts and None, and lists of them."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
