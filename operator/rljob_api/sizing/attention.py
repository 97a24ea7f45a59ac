"""Sizes of layers with something else than plain attention."""

from dataclasses import dataclass
from typing import Any

from rljob_api.families import has_delta_nets
from rljob_api.indexers import FULL, indexers_of

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
