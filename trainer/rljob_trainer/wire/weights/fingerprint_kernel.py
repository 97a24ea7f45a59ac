"""The inner sum of fingerprint.py as a Triton kernel: it reads the words once and writes a number per row.

torch's operations widen every word to 64 bits in memory first: 20 bytes moved for every 4.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024


def row_sums(rows: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Of int32 rows [n, words], words a multiple of BLOCK, and int64 coefficients [words]: [n] int64, modulo 2^64."""
    out = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    if len(rows):
        _row_sums[(len(rows),)](rows, coefficients, out, rows.shape[1], BLOCK=BLOCK)
    return out


@triton.jit
def _row_sums(rows, coefficients, out, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, words, BLOCK):
        word = tl.load(rows + row * words + start + columns).to(tl.int64)
        total += word * tl.load(coefficients + start + columns)
    tl.store(out + row, tl.sum(total, 0))
