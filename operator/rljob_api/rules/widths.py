"""Heads and matrices of a model's config.json, which the ranks that train it and the GPUs of its servers divide."""

from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import Any

from rljob_api.families import has_latent_attention
from rljob_api.rules.engine import Violation
from rljob_api.sizing.layout import divisors
from rljob_api.sizing.shape import experts_of
from rljob_api.spec.common import MOST_PROCESSES


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


def undivided(field: str, size: int, widths: Mapping[str, int], groups: int | None = None) -> Iterator[Violation]:
    """At most one violation, of all that GPUs would divide, by its key in config.json: what they cannot, and the sizes that divide all of it.
    `groups`: heads of keys and values, which may also be on several GPUs each."""
    left = {key: width for key, width in widths.items() if width % size}
    shared = not groups or _shared(groups, size)
    if not left and shared:
        return
    named = ", ".join(f"{key} = {width}" for key, width in left.items())
    rules = [f"{named} of the model {'is' if len(left) == 1 else 'are'} not divisible by it"] if left else []
    rules += [] if shared else [f"num_key_value_heads = {groups} of the model must be a multiple or a divisor of it"]
    yield Violation(field, str(size), ", and ".join(rules), f"choose {_either(_sizes(widths, groups))}")


def _shared(groups: int, size: int) -> bool:
    return groups % size == 0 or size % groups == 0


def _sizes(widths: Mapping[str, int], groups: int | None) -> list[int]:
    """That divide all, small ones first."""
    common = gcd(*widths.values()) or groups or 1
    return [size for size in divisors(common, MOST_PROCESSES) if not groups or _shared(groups, size)]


def _either(sizes: Sequence[int]) -> str:
    *others, last = map(str, sizes)
    return f"{', '.join(others)} or {last}" if others else last
