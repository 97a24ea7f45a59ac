"""Images as a vision tower reads them, and the positions of tokens in sequences that hold some. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """One image, as the model's image processor cuts it into patches."""

    pixels: Pixels
    """[rows * columns, numbers of a patch], in the processor's order."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    merge: int
    """A square of so many rows and columns of patches becomes one token."""

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
        """That it takes in a sequence."""
        rows, columns = self.token_grid
        return rows * columns


Placed = tuple[int, Image]
"""The place of an image's first token in a sequence, and the image. Its other tokens follow."""


def positions(length: int, images: Sequence[Placed]) -> npt.NDArray[np.int64]:
    """[3, length]: time, row and column of every token, for multimodal rotary embedding (Qwen2-VL, arXiv 2409.12191, section 2.1).

    The three of a text's token are one number, which counts on from the largest before it. All tokens of an image are at one time; its rows and
    columns count from there. `images`: in the order of their places.
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
