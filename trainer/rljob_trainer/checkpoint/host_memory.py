"""Pinned host memory for tensors that are offloaded from a device, and what it shares with that of saves (checkpoint/staging.py).

A GPU copies at full rate to and from pinned memory only, and torch rounds every allocation of it up to a power of two
(ATen/core/CachingHostAllocator.h, `allocate`): 17 GiB would take 32. Blocks whose size is a power of two waste nothing.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch

BLOCK = 2**26
"""Bytes in a block, about a millisecond of copying. So no other thread waits long for the driver while one is pinned."""


class HostMemory:
    """A byte array that grows as needed. Blocks are never freed, because pinning takes longer than copying."""

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[torch.Tensor] = []

    @property
    def size(self) -> int:
        return self._block * len(self._blocks)

    def write(self, at: int, source: torch.Tensor) -> int:
        """`source`: [n] uint8. Returns where the next one may begin."""
        for start, piece in self._pieces(at, len(source)):
            piece.copy_(source[start : start + len(piece)])
        return at + len(source)

    def read(self, at: int, target: torch.Tensor) -> int:
        """`target`: [n] uint8, is overwritten. Returns where the next one begins."""
        for start, piece in self._pieces(at, len(target)):
            target[start : start + len(piece)].copy_(piece)
        return at + len(target)

    def _pieces(self, at: int, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (offset in the caller's bytes, slice of a block) for all blocks in which these bytes lie."""
        for begin, end in within_blocks(at, at + size, self._block):
            number, offset = divmod(begin, self._block)
            while number >= len(self._blocks):
                self._blocks.append(torch.empty(self._block, dtype=torch.uint8, pin_memory=torch.cuda.is_available()))
            yield begin - at, self._blocks[number][offset : offset + end - begin]


def within_blocks(start: int, end: int, block: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of the bytes from `start` to `end` that lie in one block each."""
    yield from pairwise((start, *range((start // block + 1) * block, end, block), end) if start < end else ())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """[n] uint8: the same memory. Raises RuntimeError for a tensor that is not contiguous."""
    return tensor.detach().view(-1).view(torch.uint8)
