"""Heads and matrices of a model's config.json, which the ranks that train it and the GPUs of its servers divide."""

from collections.abc import Iterator
from typing import Any

from rljob_api.families import has_latent_attention
from rljob_api.rules.engine import Violation
from rljob_api.sizing.shape import experts_of


def heads_of(config: dict[str, Any]) -> tuple[int | None, int | None]:
    """Heads of queries, and of keys and values: with multi-latent attention each head has its own."""
    heads = config.get("num_attention_heads")
    return heads, heads if has_latent_attention(config) else config.get("num_key_value_heads") or heads


def feed_forward(config: dict[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """Key and width of the feed-forward matrices, and whether they are an expert's; where there are experts also those of the shared experts and of
    layers without."""
    if not experts_of(config):
        yield "intermediate_size", config.get("intermediate_size") or 0, False
        return
    key = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    width = config.get(key) or 0
    yield key, width, True
    if shared := config.get("n_shared_experts"):
        yield "moe_intermediate_size * n_shared_experts", width * shared, False
    if shared := config.get("shared_expert_intermediate_size"):
        yield "shared_expert_intermediate_size", shared, False
    if config.get("first_k_dense_replace"):
        yield "intermediate_size", config.get("intermediate_size") or 0, False


def unshared(field: str, size: int, groups: int) -> Violation:
    rule = f"num_key_value_heads = {groups} of the model must be a multiple or a divisor of it"
    return Violation(field, str(size), rule, f"choose a divisor or a multiple of {groups}")


def indivisible(field: str, size: int, key: str, value: int) -> Violation:
    return Violation(
        field,
        str(size),
        f"{key} = {value} of the model is not divisible by it",
        f"choose a divisor of {value}",
    )
