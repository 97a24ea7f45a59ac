"""The size of a decoder-only transformer, from its Hugging Face config.json: what traffic and memory are computed from."""

from dataclasses import dataclass
from typing import Any

from rljob_api.spec.model import LoraSpec

BYTES = {"float32": 4, "bfloat16": 2}
"""Of one parameter or activation, by `spec.model.dtype`."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


def experts_of(config: dict[str, Any]) -> int:
    """Experts of a layer; 0: the model has none."""
    return next((config[key] for key in EXPERT_COUNTS if config.get(key)), 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths and counts. A dense model has no experts."""

    layers: int
    hidden: int
    heads: int
    groups: int
    """Key-value heads."""
    head: int
    """Width of one head."""
    feed_forward: int
    """Of a dense layer."""
    vocabulary: int
    tied: bool = False
    """The output layer is the embedding."""
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0

    @staticmethod
    def of(config: dict[str, Any]) -> "Shape | None":
        """None when config.json does not say enough."""
        config = config | config.get("text_config", {})
        needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
        if not all(isinstance(config.get(key), int) for key in needed):
            return None
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        experts = experts_of(config)
        wide = config.get("intermediate_size") or 4 * hidden
        return Shape(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            groups=config.get("num_key_value_heads") or heads,
            head=config.get("head_dim") or hidden // heads,
            feed_forward=wide,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            experts=experts,
            experts_per_token=config.get("num_experts_per_tok") or 0,
            expert_feed_forward=(config.get("moe_intermediate_size") or wide) if experts else 0,
        )

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention: queries and output, keys and values."""
        return 2 * self.hidden * self.head * (self.heads + self.groups)

    @property
    def expert(self) -> int:
        """Parameters of one layer's experts: three matrices each (SwiGLU)."""
        return 3 * self.hidden * self.expert_feed_forward * self.experts

    @property
    def dense(self) -> int:
        """Parameters of one layer outside its experts: attention, and the feed-forward matrices or the router."""
        return self.attention + (self.hidden * self.experts if self.experts else 3 * self.hidden * self.feed_forward)

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    def adapters(self, lora: LoraSpec) -> int:
        """Parameters of one dense layer's adapters: rank x (inputs + outputs) of each matrix that has one."""
        queries = self.head * self.heads
        widths = {
            "linear_qkv": self.hidden + queries + 2 * self.head * self.groups,
            "linear_proj": queries + self.hidden,
            "linear_fc1": self.hidden + 2 * self.feed_forward,
            "linear_fc2": self.feed_forward + self.hidden,
        }
        return lora.rank * sum(widths[target] for target in set(lora.targets))

    @property
    def parameters(self) -> int:
        """Norms and biases left out: less than a thousandth."""
        return self.layers * (self.dense + self.expert) + self.embedding * (1 if self.tied else 2)


NOMINAL = Shape(36, 4096, 32, 8, 128, 12288, 151936)
"""8 billion parameters (Qwen3-8B): where nobody can read config.json, as in the operator. Which communicator moves most depends little on it."""
