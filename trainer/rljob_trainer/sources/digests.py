"""The digest of a file while its bytes arrive, in the words of hubs and stores."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

READ_BYTES = 2**20


class Digests:
    """Of one file of `size` bytes: its sha256, and the one that the source names."""

    def __init__(self, named: tuple[str, str] | None, size: int) -> None:
        self._sha256, self._named = hashlib.sha256(), named
        kind = named[0] if named else "sha256"
        self._other = None if kind == "sha256" else hashlib.new({"git": "sha1"}.get(kind, kind))
        if self._other and kind == "git":
            self._other.update(f"blob {size}\0".encode())

    def add(self, block: bytes) -> None:
        self._sha256.update(block)
        if self._other:
            self._other.update(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def agree(self) -> bool:
        """True also when the source names none."""
        return self._named is None or (self._other or self._sha256).hexdigest() == self._named[1]


def read_blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            yield block
