"""The size of a decoder-only transformer and of its vision tower, from a Hugging Face config.json: what traffic and memory are computed from."""

from dataclasses import dataclass
from typing import Any

from rljob_api.config_json import OF_DELTA_NETS, OF_INDEXERS, OF_LATENTS, unfit
from rljob_api.families import has_delta_nets, has_sparse_attention, language_of, targets_of
from rljob_api.family import ADAPTED
from rljob_api.sizing.attention import DeltaNets, Latent
from rljob_api.spec.model import LoraSpec


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision tower of Qwen2.5-VL (arXiv 2502.13923) or Qwen3-VL (arXiv 2511.21631). Every tensor-parallel rank has all of it."""

    depth: int
    hidden: int
    feed_forward: int
    patch: int
    """Number of inputs of one patch: channels x time x height x width."""
    patches: int
    """Number of patches that become one token."""
    out: int
    """Width of the language model."""
    matrices: int = 3
    """Matrices of a feed-forward layer: 3 with a gate, 2 without."""
    positions: int = 0
    """Number of positions that have a learnt embedding."""
    projectors: int = 1
    """Number of projectors: one after the last layer, and with deepstack one after some layers before it."""

    @staticmethod
    def of(config: dict[str, Any]) -> "Tower | None":
        """The tower by a config.json; None: the model has none, or config.json does not say enough."""
        vision = config.get("vision_config") or {}
        needed = ("depth", "hidden_size", "intermediate_size", "out_hidden_size")
        if not all(isinstance(vision.get(key), int) for key in needed):
            return None
        channels = vision.get("in_channels") or vision.get("in_chans") or 3
        side = vision.get("patch_size") or 14
        return Tower(
            depth=vision["depth"],
            hidden=vision["hidden_size"],
            feed_forward=vision["intermediate_size"],
            patch=channels * (vision.get("temporal_patch_size") or 2) * side * side,
            patches=(vision.get("spatial_merge_size") or 2) ** 2,
            out=vision["out_hidden_size"],
            **_of_qwen3(vision),
        )

    @property
    def vision(self) -> int:
        """Parameters of the tower: queries, keys, values and the output, the feed-forward layer, and the cut into patches with their positions."""
        layer = 4 * self.hidden + self.matrices * self.feed_forward
        return self.hidden * (self.depth * layer + self.patch + self.positions)

    @property
    def projector(self) -> int:
        """Parameters of two matrices that read the patches of a token, of each projector."""
        wide = self.patches * self.hidden
        return self.projectors * (wide * wide + wide * self.out)

    def parameters(self, frozen: tuple[str, ...] = ()) -> int:
        """Parameters of the parts `vision` and `projector` that are not in `frozen`, without norms and biases."""
        return sum(getattr(self, part) for part in ("vision", "projector") if part not in frozen)

    @property
    def kept(self) -> int:
        """Numbers of a token of an image that a backward pass through the tower needs: as a layer of the language model's, for each patch."""
        return self.patches * self.depth * (8 * self.hidden + self.matrices * self.feed_forward)


def _of_qwen3(vision: dict[str, Any]) -> dict[str, int]:
    positions, deepstack = vision.get("num_position_embeddings"), vision.get("deepstack_visual_indexes") or ()
    if not positions:
        return {}
    return {"matrices": 2, "positions": positions, "projectors": 1 + len(deepstack)}


BYTES = {"float32": 4, "bfloat16": 2}
"""Bytes of one parameter or activation, by `spec.model.dtype`."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys of config.json that hold the number of experts."""


BYTE_EXPERTS = 256
"""Experts of a layer whose index takes a byte where they are replayed; where there are more, it takes two."""


def experts_of(config: dict[str, Any]) -> int:
    """Experts of a layer; 0: the model has none."""
    return next((config[key] for key in EXPERT_COUNTS if config.get(key)), 0)


def shared_width(config: dict[str, Any]) -> int:
    """Width of the experts that every token goes through, together."""
    if width := config.get("shared_expert_intermediate_size"):
        return width
    return (config.get("moe_intermediate_size") or 0) * (config.get("n_shared_experts") or 0)


@dataclass(frozen=True, slots=True)
class PassCost:
    """Operations of a pass over one sequence of l tokens: token x l + square x l^2."""

    token: int
    """Matrices that every token is multiplied with: two operations for each parameter that takes part."""
    square: int
    """Attention of every token to all before it."""

    def of(self, length: int) -> int:
        return self.token * length + self.square * length * length


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
    """Width of a dense layer's feed-forward part."""
    vocabulary: int
    tied: bool = False
    """The output layer is the embedding."""
    experts: int = 0
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    shared_feed_forward: int = 0
    """Width of the experts that every token goes through, together."""
    dense_layers: int = 0
    """Layers without experts in a model that has some: its first ones."""
    latent: Latent | None = None
    delta_nets: DeltaNets | None = None
    """Of the layers that have them in place of attention."""
    tower: Tower | None = None
    """The vision tower; None: the model reads no images."""
    adapted: tuple[str, ...] = ADAPTED
    """Matrices next to which LoRA is trained, unless a job names some."""

    @staticmethod
    def of(config: dict[str, Any]) -> "Shape | None":
        """The shape by a config.json; None: it does not say enough, or a value that its key cannot have."""
        if unfit(config):
            return None
        config = language_of(config)
        latents = OF_LATENTS if config.get("kv_lora_rank") else ()
        states = OF_DELTA_NETS if has_delta_nets(config) else ()
        indexers = (*OF_INDEXERS, "q_lora_rank") if has_sparse_attention(config) else ()
        needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", *latents, *indexers, *states)
        if not all(isinstance(config.get(key), int) for key in needed):
            return None
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        experts = experts_of(config)
        wide = config.get("intermediate_size") or 4 * hidden
        narrow = (config.get("moe_intermediate_size") or wide) if experts else 0
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
            expert_feed_forward=narrow,
            shared_feed_forward=shared_width(config) if experts else 0,
            dense_layers=(config.get("first_k_dense_replace") or 0) if experts else 0,
            latent=Latent.of(config),
            delta_nets=DeltaNets.of(config),
            tower=Tower.of(config),
            adapted=targets_of(None, config),
        )

    @property
    def attending(self) -> float:
        """Share of the layers that have attention."""
        return 1 - self.delta_nets.layers / self.layers if self.delta_nets else 1.0

    @property
    def attention(self) -> float:
        """Parameters of a layer's attention, as the mean of all layers: queries and output, keys and values; with delta nets also a gate for each
        number of the output."""
        if self.latent:
            return self.latent.parameters(self.hidden, self.heads)
        plain = 2 * self.hidden * self.head * (self.heads + self.groups)
        if not self.delta_nets:
            return plain
        gated = plain + self.hidden * self.head * self.heads
        return self.attending * gated + (1 - self.attending) * self.delta_nets.parameters(self.hidden)

    @property
    def keys_and_values(self) -> float:
        """Numbers per token and layer that attention reads: keys and values, as the mean of all layers."""
        if self.latent:
            return self.heads * (self.latent.content + self.latent.rotated + self.latent.value)
        return 2 * self.groups * self.head * self.attending

    @property
    def attended(self) -> float:
        """Numbers per token that the attention of a layer computes, as the mean of all layers: queries, keys, values and the output."""
        if self.latent:
            return 2 * self.heads * (self.latent.content + self.latent.rotated + self.latent.value)
        plain = 2 * self.head * (self.heads + self.groups)
        if not self.delta_nets:
            return plain
        gated = plain + self.head * self.heads
        return self.attending * gated + (1 - self.attending) * self.delta_nets.computed

    @property
    def mixed(self) -> int:
        """Parameters of a layer's experts, three matrices each (SwiGLU)."""
        return 3 * self.hidden * self.expert_feed_forward * self.experts

    def outside(self, mixed: float, plain: float) -> float:
        """Parameters outside experts of layers, `mixed` of which have experts and `plain` have none: attention, the feed-forward matrices, or the
        router and the shared experts."""
        beside_experts = self.hidden * (self.experts + 3 * self.shared_feed_forward)
        feed_forward = 3 * self.hidden * self.feed_forward
        return (mixed + plain) * self.attention + mixed * beside_experts + plain * feed_forward

    @property
    def expert(self) -> float:
        """Parameters of a layer's experts, as the mean of all layers."""
        return self.mixed * (self.layers - self.dense_layers) / self.layers

    @property
    def dense(self) -> float:
        """Parameters of a layer outside its experts, as the mean of all layers."""
        plain = self.dense_layers if self.experts else self.layers
        return self.outside(self.layers - plain, plain) / self.layers

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def work(self) -> PassCost:
        """Operations of a forward pass; a backward pass has twice as many. Sliding windows are counted as full attention, and of delta nets the
        matrices."""
        chosen = self.expert * self.experts_per_token / self.experts if self.experts else 0
        taking_part = round(self.layers * (self.dense + chosen)) + self.embedding
        scored_and_summed = (
            self.latent.content + self.latent.rotated + self.latent.value if self.latent else 2 * self.head
        )
        return PassCost(2 * taking_part, round(self.attending * self.layers * self.heads * scored_and_summed))

    def adapters(self, lora: LoraSpec) -> int:
        """Parameters of one layer's adapters: rank x (inputs + outputs) of each matrix that has one."""
        queries, keys, up = self.head * self.heads, self.head * self.groups, self.feed_forward
        values = self.heads * self.latent.value if self.latent else queries
        widths = {
            "linear_qkv": self.hidden + queries + 2 * keys,
            "linear_q": self.hidden + queries,
            "linear_k": self.hidden + keys,
            "linear_v": self.hidden + keys,
            "linear_proj": values + self.hidden,
            "linear_fc1": self.hidden + 2 * up,
            "linear_fc1_gate": self.hidden + up,
            "linear_fc1_up": self.hidden + up,
            "linear_fc2": up + self.hidden,
        }
        return lora.rank * sum(widths[target] for target in set(lora.targets or self.adapted))

    @property
    def parameters(self) -> int:
        """Parameters of the model, without norms and biases, which are less than a thousandth."""
        language = round(self.layers * (self.dense + self.expert)) + self.embedding * (1 if self.tied else 2)
        return language + (self.tower.parameters() if self.tower else 0)


NOMINAL = Shape(36, 4096, 32, 8, 128, 12288, 151936)
"""8 billion parameters (Qwen3-8B), for where config.json cannot be read, as in the operator. Which communicator moves most depends little on the
size."""
