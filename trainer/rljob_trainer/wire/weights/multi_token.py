"""Names of the tensors that layers for multi-token prediction have in a model's files, behind those of the last layer (DeepSeek-V3's format)."""

from collections.abc import Mapping
from typing import Any

COPIES = (".embed_tokens.weight", ".shared_head.head.weight")
"""Suffixes of the copies of embedding and output layer that some files have in these layers. The layers share the policy's: no update has copies."""


def multi_token_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Beginnings of the names of their tensors; empty: a config.json's model has none."""
    layers, further = config.get("num_hidden_layers", 0), config.get("num_nextn_predict_layers") or 0
    return tuple(f"model.layers.{layers + i}." for i in range(further))


def is_copy(name: str, further: tuple[str, ...]) -> bool:
    """Whether a tensor of a file is in no update. `further`: the model's multi_token_layers."""
    return name.startswith(further) and name.endswith(COPIES)
