"""A file that is hashed while it is written, so that nobody has to read it back, and that becomes durable piece by piece."""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import IO, Self

from rljob_trainer.checkpoint.files import Tally

PIECE_BYTES = 2**28
"""Bytes between two syncs. Otherwise the page cache may take the whole file, and the one sync at its end lasts minutes without any progress."""
SMALL_BYTES = 2**16
"""Up to so many bytes are hashed without the help of a thread."""


class Hashed:
    """Writes to a file from its beginning to its end. The processor copies and hashes while the disk takes the previous piece.

    Raises OSError, of a sync in the next call after it.
    """

    def __init__(self, tally: Tally) -> None:
        """`tally`: counts the bytes that are durable."""
        self.stream: IO[bytes] | None = None
        """The file, opened by somebody else, who also syncs and closes it."""
        self._tally, self._digest = tally, hashlib.sha256()
        self._bytes = self._cached = 0
        self._syncing: Future[None] | None = None
        self._pool = ThreadPoolExecutor(2, "checkpoint-help")  # one hashes, one syncs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            self._write(view[start : start + PIECE_BYTES])
        return len(view)

    def flush(self) -> None:
        assert self.stream
        self.stream.flush()

    def fingerprint(self) -> tuple[int, str]:
        """Size in bytes and sha256 of all that was written. To be called once the file is synced and closed."""
        self._synced()
        self._tally.add(self._cached)
        return self._bytes, self._digest.hexdigest()

    def _write(self, piece: memoryview) -> None:
        assert self.stream
        hashing = self._pool.submit(self._digest.update, piece) if len(piece) > SMALL_BYTES else None
        self.stream.write(piece)
        self._bytes, self._cached = self._bytes + len(piece), self._cached + len(piece)
        if hashing:
            hashing.result()  # before the caller may change what it gave
        else:
            self._digest.update(piece)
        if self._cached >= PIECE_BYTES:
            self._sync()

    def _sync(self) -> None:
        assert self.stream
        self._synced()
        self.stream.flush()
        own = os.dup(self.stream.fileno())  # the file may be closed meanwhile
        self._syncing, self._cached = self._pool.submit(self._store, own, self._cached), 0

    def _synced(self) -> None:
        if self._syncing:
            self._syncing.result()
            self._syncing = None

    def _store(self, handle: int, count: int) -> None:
        try:
            os.fdatasync(handle)
        finally:
            os.close(handle)
        self._tally.add(count)
