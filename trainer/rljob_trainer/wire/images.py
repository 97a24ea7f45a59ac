"""Preprocessed images, and position ids of sequences with images. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One image, cut into patches by the model's image processor."""

    pixels: Pixels
    """[rows * columns, values of a patch], in the processor's order."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    merge: int
    """A square of merge x merge patches becomes one token."""

    def __post_init__(self) -> None:
        assert len(self.pixels) == self.grid[0] * self.grid[1], "every patch has its numbers"

    def __eq__(self, other: object) -> bool:
        """Bit by bit."""
        if not isinstance(other, Image):
            return NotImplemented
        same = (self.grid, self.merge, self.pixels.shape) == (other.grid, other.merge, other.pixels.shape)
        return same and self.pixels.tobytes() == other.pixels.tobytes()

    __hash__ = None  # type: ignore[assignment]

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return self.grid[0] // self.merge, self.grid[1] // self.merge

    @property
    def tokens(self) -> int:
        """Number of tokens that the image takes in a sequence."""
        rows, columns = self.token_grid
        return rows * columns


Placed = tuple[int, Image]
"""Index of an image's first token in a sequence, and the image."""


def positions(length: int, images: Sequence[Placed]) -> npt.NDArray[np.int64]:
    """[3, length]: time, row and column of every token, for multimodal rotary embedding (Qwen2-VL, arXiv 2409.12191, section 2.1).

    All three are equal for a token of text, and continue from the largest number before it. All tokens of an image have the same time, from which
    rows and columns are counted. `images`: in the order of their places.
    """
    parts, at, count = [], 0, 0
    for start, image in images:
        parts.append(_line(start - at, count))
        count += start - at
        rows, columns = image.token_grid
        inside = np.indices((1, rows, columns)).reshape(3, -1) + count
        parts.append(inside)
        at, count = start + image.tokens, count + max(rows, columns)
    return np.concatenate([*parts, _line(length - at, count)], axis=1)


def _line(length: int, first: int) -> npt.NDArray[np.int64]:
    return np.broadcast_to(np.arange(length) + first, (3, length))
