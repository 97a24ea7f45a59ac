"""The checksum of tensors: against plain arithmetic, and what it notices."""

import os
import subprocess
import sys

import pytest
import torch

from rljob_trainer.wire.weights import fingerprint
from rljob_trainer.wire.weights.fingerprint import ROW_BYTES, ROW_WORDS, fingerprints, padded

MODULUS = 2**64


def splitmix64(seed: int, index: int) -> int:
    z = (index + 1 + (seed << 32)) * 0x9E3779B97F4A7C15 % MODULUS
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % MODULUS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % MODULUS
    return (z ^ (z >> 31)) | 1


def by_hand(data: bytes) -> str:
    words = [int.from_bytes(data[i : i + 4].ljust(4, b"\0"), "little", signed=True) for i in range(0, len(data), 4)]
    total = sum(splitmix64(2, i // ROW_WORDS) * splitmix64(1, i % ROW_WORDS) * w for i, w in enumerate(words))
    return f"{total % MODULUS:016x}"


def payload(*parts: bytes) -> tuple[torch.Tensor, list[int]]:
    whole = b"".join(p.ljust(padded(len(p)), b"\0") for p in parts)
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8), [len(p) for p in parts]


def random_bytes(size: int, seed: int = 0) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).numpy().tobytes()


def test_it_is_the_formula_of_its_docstring() -> None:
    parts = [random_bytes(size, size) for size in (1, 4, 1000, ROW_BYTES, ROW_BYTES + 2, 3 * ROW_BYTES - 1)]
    assert fingerprints(*payload(*parts)) == [by_hand(p) for p in parts]


def test_it_does_not_depend_on_neighbours_or_on_the_pieces_it_is_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes(7 * ROW_BYTES + 100)
    alone = fingerprints(*payload(data))
    assert fingerprints(*payload(b"before", data, b"behind"))[1:2] == alone
    monkeypatch.setitem(fingerprint.PIECE_ROWS, "cpu", 2)
    assert fingerprints(*payload(data)) == alone


@pytest.mark.parametrize("position", [0, 3, ROW_BYTES - 1, ROW_BYTES, 2 * ROW_BYTES + 6])
def test_every_flipped_bit_shows(position: int) -> None:
    data = random_bytes(2 * ROW_BYTES + 7)
    flipped = [data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :] for bit in range(8)]
    assert len(set(fingerprints(*payload(data, *flipped)))) == 9


def test_signs_that_flip_in_pairs_show() -> None:
    """In a sum modulo 2^64 of 64-bit words, flips of two highest bits would cancel."""
    data = torch.ones(ROW_WORDS)
    both = data.clone()
    both[[3, 700]] *= -1
    as_bytes = [t.numpy().tobytes() for t in (data, both)]
    assert len(set(fingerprints(*payload(*as_bytes)))) == 2


def test_exchanged_words_and_rows_show() -> None:
    data = random_bytes(2 * ROW_BYTES)
    words = data[4:8] + data[:4] + data[8:]
    rows = data[ROW_BYTES:] + data[:ROW_BYTES]
    assert len(set(fingerprints(*payload(data, words, rows)))) == 3


def test_nothing_has_a_fingerprint_too() -> None:
    assert fingerprints(torch.empty(0, dtype=torch.uint8), [0, 0]) == ["0" * 16] * 2


PROGRAM = """
import torch
from rljob_trainer.wire.weights import fingerprint_kernel as kernel
rows = torch.randint(-2**31, 2**31, (5, 4096), dtype=torch.int32)
coefficients = torch.randint(-2**62, 2**62, (4096,))
assert torch.equal(kernel.row_sums(rows, coefficients), (rows * coefficients).sum(1))
assert kernel.row_sums(rows[:0], coefficients).shape == (0,)
"""


def test_the_kernel_for_gpus_computes_what_torch_computes() -> None:
    """Interpreted on the CPU, in a process of its own: Triton reads the variable when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
