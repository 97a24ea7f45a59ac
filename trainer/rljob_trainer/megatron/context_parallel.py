"""Which rows of a pack a context-parallel rank holds.

Every sequence is cut into 2 x ranks chunks, and rank r takes chunks r and 2 x ranks - 1 - r: with causal attention all ranks then have the same work.
It is Transformer Engine's cut as well (transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import torch

_KNOWN = "rljob_boundaries"


def boundaries(cu_seqlens: torch.Tensor) -> tuple[int, ...]:
    """Of the sequences, as numbers. Asks the device once for each tensor: every question waits for all of its work, and every layer asks."""
    if (known := getattr(cu_seqlens, _KNOWN, None)) is None:
        known = tuple(cu_seqlens.tolist())
        setattr(cu_seqlens, _KNOWN, known)
    return known


def chunks(ranks: int, rank: int) -> tuple[int, ...]:
    """The chunks of every sequence that `rank` holds, in its own order."""
    return (rank, 2 * ranks - 1 - rank) if ranks > 1 else (0,)


def pieces(starts: tuple[int, ...], ranks: int, rank: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, chunk, its number of rows) in the order of the rank's rows. Sequences lie between consecutive `starts` and divide evenly."""
    for sequence, (start, end) in enumerate(pairwise(starts)):
        for chunk in chunks(ranks, rank):
            yield sequence, chunk, (end - start) // (2 * ranks if ranks > 1 else 1)


@lru_cache(maxsize=64)
def rows(starts: tuple[int, ...], ranks: int, rank: int) -> torch.Tensor:
    """[t / ranks]: the rows of the whole pack that `rank` holds, in its own order."""
    found = [
        torch.arange(starts[sequence] + chunk * size, starts[sequence] + (chunk + 1) * size)
        for sequence, chunk, size in pieces(starts, ranks, rank)
    ]
    return torch.cat(found)


@lru_cache(maxsize=64)
def positions(starts: tuple[int, ...], ranks: int, rank: int, device: torch.device) -> torch.Tensor:
    """[t / ranks]: the place in its sequence of every row that `rank` holds."""
    whole = torch.cat([torch.arange(end - start) for start, end in pairwise(starts)])
    return whole[rows(starts, ranks, rank)].to(device)


@lru_cache(maxsize=64)
def gathered(starts: tuple[int, ...], ranks: int) -> torch.Tensor:
    """[t]: where each row of the pack lies when the shares of all ranks are put behind each other."""
    return torch.cat([rows(starts, ranks, rank) for rank in range(ranks)]).argsort()
