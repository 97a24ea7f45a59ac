"""Which tokens of a pack a context-parallel rank has.

Every sequence is cut into 2 x ranks chunks, and rank r gets chunks r and 2 x ranks - 1 - r (zig-zag), so that causal attention is the same work on
all ranks. Transformer Engine cuts in the same way (transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import torch

_KNOWN = "rljob_boundaries"


def boundaries(cu_seqlens: torch.Tensor) -> tuple[int, ...]:
    """`cu_seqlens` as Python numbers. Cached on the tensor: reading it waits for all work of the device, and every layer needs it."""
    known = getattr(cu_seqlens, _KNOWN, None)
    if known is None:
        known = tuple(cu_seqlens.tolist())
        setattr(cu_seqlens, _KNOWN, known)
    return known


def chunks(ranks: int, rank: int) -> tuple[int, ...]:
    """The chunks of every sequence that `rank` has, in its order."""
    return (rank, 2 * ranks - 1 - rank) if ranks > 1 else (0,)


def pieces(starts: tuple[int, ...], ranks: int, rank: int) -> Iterator[tuple[int, int, int]]:
    """Yields (sequence, chunk, tokens in the chunk) in the order of the rank's tokens. `starts`: boundaries of the sequences, which divide evenly."""
    for sequence, (start, end) in enumerate(pairwise(starts)):
        for chunk in chunks(ranks, rank):
            yield sequence, chunk, (end - start) // (2 * ranks if ranks > 1 else 1)


@lru_cache(maxsize=64)
def rows(starts: tuple[int, ...], ranks: int, rank: int) -> torch.Tensor:
    """[t / ranks]: indices into the whole pack of the tokens that `rank` has, in its order."""
    parts = [
        torch.arange(starts[sequence] + chunk * size, starts[sequence] + (chunk + 1) * size)
        for sequence, chunk, size in pieces(starts, ranks, rank)
    ]
    return torch.cat(parts)


@lru_cache(maxsize=64)
def positions(starts: tuple[int, ...], ranks: int, rank: int, device: torch.device) -> torch.Tensor:
    """[t / ranks]: position in its sequence of each token that `rank` has."""
    whole = torch.cat([torch.arange(end - start) for start, end in pairwise(starts)])
    return whole[rows(starts, ranks, rank)].to(device)


@lru_cache(maxsize=64)
def gathered(starts: tuple[int, ...], ranks: int) -> torch.Tensor:
    """[t]: index of each token of the pack in the concatenated partitions of all ranks."""
    return torch.cat([rows(starts, ranks, rank) for rank in range(ranks)]).argsort()
