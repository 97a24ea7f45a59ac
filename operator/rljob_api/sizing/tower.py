"""The size of a vision tower and of the projector behind it, from the `vision_config` of a Hugging Face config.json."""

from dataclasses import dataclass
from typing import Any


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
    deepstack = vision.get("deepstack_visual_indexes")
    if deepstack is None:
        return {}
    return {"matrices": 2, "positions": vision.get("num_position_embeddings") or 0, "projectors": 1 + len(deepstack)}
