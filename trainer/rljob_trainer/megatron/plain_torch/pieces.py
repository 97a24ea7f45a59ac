"""Packed sequences as a few padded batches of pieces of about the same length, for attention that takes no packs."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from rljob_trainer.megatron import context_parallel


@dataclass(frozen=True, slots=True)
class PaddedPieces:
    """Pieces of sequences of about the same length as one padded batch, and the keys that they may attend to."""

    queries: torch.Tensor
    """[n, w] indices into this rank's partition. Padding repeats index 0."""
    keys: torch.Tensor
    """[n, k] indices into the gathered partitions, from the beginning of each piece's sequence on. Padding repeats index 0 and is masked."""
    first: torch.Tensor | None
    """[n] position of each piece's first query in its sequence; None: all pieces begin their sequence."""

    @property
    def last(self) -> torch.Tensor:
        """[n, w], the index of the last key that each query attends to: its own."""
        (n, w), device = self.queries.shape, self.queries.device
        first = torch.zeros(n, dtype=torch.long, device=device) if self.first is None else self.first
        return first[:, None] + torch.arange(w, device=device)

    def mask(self, window: int | None) -> torch.Tensor | None:
        """[n, 1, w, k], True where a query attends to a key; None: the causal triangle. Computed for each use, since it is large."""
        k = self.keys.shape[1]
        window = k if window is None else window
        if self.first is None and k <= window + 1:
            return None
        last, key = self.last[..., None], torch.arange(k, device=self.keys.device)
        return ((key <= last) & (key >= last - window))[:, None]


@lru_cache(maxsize=32)
def padded_pieces(
    starts: tuple[int, ...], ranks: int, rank: int, device: torch.device
) -> tuple[list[PaddedPieces], torch.Tensor]:
    """Those of a pack, and the index of each row's result in their concatenated outputs.

    Each has the same chunk of sequences whose lengths lie between two powers of two, so that less than half of it is padding.
    """
    by_size: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    at = 0
    for sequence, chunk, size in context_parallel.pieces(starts, ranks, rank):
        by_size.setdefault((chunk, size.bit_length()), []).append((at, starts[sequence], size))
        at += size
    where, place = context_parallel.gathered(starts, ranks), torch.empty(at, dtype=torch.long)
    batches, offset = [], 0
    for (chunk, _), stretches in by_size.items():
        width = max(size for _, _, size in stretches)
        queries = torch.zeros(len(stretches), width, dtype=torch.long)
        keys = torch.zeros(len(stretches), (chunk + 1) * width, dtype=torch.long)
        for i, (row, start, size) in enumerate(stretches):
            queries[i, :size] = torch.arange(row, row + size)
            keys[i, : (chunk + 1) * size] = where[start : start + (chunk + 1) * size]
            place[row : row + size] = torch.arange(size) + offset + i * width
        first = torch.tensor([chunk * size for _, _, size in stretches], device=device) if ranks > 1 else None
        batches.append(PaddedPieces(queries.to(device), keys.to(device), first))
        offset += queries.numel()
    return batches, place.to(device)


def picked(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """x [t, ...] at `rows` [n, w] -> [n, w, ...]."""
    return x.index_select(0, rows.flatten()).view(*rows.shape, *x.shape[1:])
