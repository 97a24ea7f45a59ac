"""A checksum that a GPU computes at memory bandwidth, and for which a CPU gets the same result.

A tensor's bytes, padded with zeros, are rows of ROW_WORDS signed 32-bit words w. Its fingerprint is

    sum over rows i of  b_i * (sum over words j of  a_j * w_ij)   modulo 2^64

with odd pseudo-random 64-bit coefficients a and b: multilinear hashing (Lemire and Kaser 2014, arXiv 1202.4961, section 3). It always detects a
change of one word, and misses any other accidental change with a probability of about 2^-32. Integer sums do not depend on their order, so every
device computes the same number. It protects against mistakes and faults, not against an adversary, whom the job's token keeps out.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from rljob_trainer.machine import triton_kernels

KERNEL = "rljob_trainer.wire.weights.fingerprint_kernel"
ROW_WORDS = 4096
ROW_BYTES = 4 * ROW_WORDS
PIECE_ROWS = {"cpu": 64, "cuda": 2048}
"""Rows that torch converts to 64 bits at a time: few enough for a CPU's caches, and enough for a GPU to be busy (32 MiB, which take 64 MiB more)."""
_WORDS_SEED, _ROWS_SEED = 1, 2


def padded(size: int) -> int:
    """`size` rounded up to a whole number of rows, in bytes."""
    return -(-size // ROW_BYTES) * ROW_BYTES


def fingerprints(payload: Tensor, sizes: list[int]) -> list[str]:
    """The fingerprint, 16 hexadecimal digits, of each tensor in `payload` [bytes, uint8]. `sizes`: their bytes; each is padded to `padded(size)`."""
    counts = [padded(size) // ROW_BYTES for size in sizes]
    rows = payload.view(torch.int32).view(-1, ROW_WORDS)
    sums = _row_sums(rows, _coefficients(_WORDS_SEED, ROW_WORDS, rows.device))
    owners, positions = torch.from_numpy(_places(counts)).to(rows.device)
    totals = torch.zeros(len(sizes), dtype=torch.int64, device=rows.device)
    totals.index_add_(0, owners, sums * _coefficients(_ROWS_SEED, max(counts, default=0), rows.device)[positions])
    return [f"{total % 2**64:016x}" for total in totals.tolist()]


def _places(counts: list[int]) -> np.ndarray:
    """[2, rows]: index of the tensor that each row belongs to, and of the row within it. One array, so that one copy brings it to the GPU."""
    rows = np.array(counts, dtype=np.int64)
    owners = np.repeat(np.arange(len(rows)), rows)
    starts = rows.cumsum() - rows
    return np.stack([owners, np.arange(len(owners)) - starts[owners]])


def _row_sums(rows: Tensor, coefficients: Tensor) -> Tensor:
    if kernel := triton_kernels(KERNEL, rows.is_cuda):
        sums: Tensor = kernel.row_sums(rows, coefficients)
        return sums
    pieces = rows.split(PIECE_ROWS[rows.device.type]) if len(rows) else [rows]
    return torch.cat([(piece * coefficients).sum(1) for piece in pieces])


def _coefficients(seed: int, count: int, device: torch.device) -> Tensor:
    """At least `count` coefficients."""
    return _table(seed, max(ROW_WORDS, 1 << (count - 1).bit_length()), device)


@lru_cache(maxsize=16)
def _table(seed: int, count: int, device: torch.device) -> Tensor:
    """splitmix64 (Steele, Lea and Flood 2014, figure 17), made odd."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)).to(device)
