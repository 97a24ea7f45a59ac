"""What is hashed while it is written is what is in the file, and it was durable when the tally said so."""

import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from rljob_trainer.checkpoint import files
from rljob_trainer.checkpoint.files import Hashed, Tally

PIECE = 2**18
SIZES = (0, 1, 300, PIECE - 301, PIECE, 3 * PIECE + 7, files.SMALL_BYTES, files.SMALL_BYTES + 1, 12)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE_BYTES", PIECE)


def written(file: Path, tally: Tally, parts: list[bytearray]) -> tuple[int, str]:
    with Hashed(file, tally) as found:
        for part in parts:
            assert found.write(memoryview(part)) == len(part)
            part[:] = b"\0" * len(part)
        return found.fingerprint()


def test_size_and_sha256_are_those_of_the_file(tmp_path: Path) -> None:
    draw, tally, file = random.Random(1), Tally(), tmp_path / "file"
    parts = [bytearray(draw.randbytes(size)) for size in SIZES]
    content = b"".join(parts)
    assert written(file, tally, parts) == (len(content), hashlib.sha256(content).hexdigest())
    assert file.read_bytes() == content
    assert tally.bytes == len(content)


def test_a_sync_that_fails_is_raised_and_its_bytes_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fdatasync", full)
    tally = Tally()
    with pytest.raises(OSError, match="no space"):
        written(tmp_path / "file", tally, [bytearray(PIECE)])
    assert tally.bytes == 0
    handles = [handle.resolve() for handle in Path("/proc/self/fd").iterdir()]
    assert tmp_path / "file" not in handles


def test_small_parts_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tensor's 39 parts most have a few bytes, and each call would take as long as all of them."""
    parts = [bytearray(b"x" * 100) for _ in range(2000)]
    pieces, write = [], Hashed._write

    def counted(self: Hashed, piece: memoryview) -> None:
        pieces.append(len(piece))
        write(self, piece)

    monkeypatch.setattr(Hashed, "_write", counted)
    assert written(tmp_path / "file", Tally(), parts)[0] == sum(pieces) == 200_000
    assert len(pieces) == -(-200_000 // files.SMALL_BYTES)
