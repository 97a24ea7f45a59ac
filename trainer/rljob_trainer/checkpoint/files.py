"""File operations that survive a kill at any point, a file that is hashed while it is written, and a counter that shows the progress of long ones."""

import hashlib
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rljob_api.callbacks import nothing

BLOCK_BYTES = 2**20
"""Bytes that `fingerprint` reads at a time."""

VISIBLE_SECONDS = 30.0
"""Network file systems show a new name to other nodes after their attribute cache expires."""

DELETING = ".deleting-"
"""In the hidden name of a directory that is being deleted."""
PIECE_BYTES = 2**28
"""Bytes between two syncs. Otherwise the page cache may take the whole file, and the one sync at its end lasts minutes without any progress."""
SMALL_BYTES = 2**16
"""Up to so many bytes are hashed without the help of a thread."""


class Tally:
    """Counts bytes written to or read from the disk, by any number of threads."""

    def __init__(self) -> None:
        self._lock, self.bytes = threading.Lock(), 0

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


def write_json(file: Path, content: Any) -> None:
    """Write atomically; durable when this returns."""
    scratch = file.with_name(file.name + ".tmp")
    try:
        with scratch.open("w") as stream:
            json.dump(content, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:  # for example, the volume is full
        scratch.unlink(missing_ok=True)
        raise
    scratch.replace(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_names(directory: Path) -> None:
    """Make the names in a directory and below it durable."""
    for path, _, _ in directory.walk(top_down=False):
        sync_directory(path)


def appears(root: Path, there: Callable[[], bool]) -> bool:
    """Whether `there`, a question about files below `root`, becomes true within VISIBLE_SECONDS."""
    deadline = time.monotonic() + VISIBLE_SECONDS
    while not there():
        if time.monotonic() > deadline:
            return False
        list(root.iterdir())  # a listing refreshes what a lookup may have cached as missing
        time.sleep(0.1)
    return True


def make_directory(directory: Path) -> None:
    """Make a directory and its missing parents, durably. Does nothing when it exists."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync_file(file: Path) -> None:
    """Make what this machine wrote into a file durable."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def sync(directory: Path, heartbeat: Callable[[], None] = nothing) -> None:
    """Make all files and names below a directory durable. `heartbeat`: called after each file."""
    for file in tree(directory):
        sync_file(file)
        heartbeat()
    sync_names(directory)


def give_name(scratch: Path, target: Path) -> None:
    """Rename a synced directory to `target`. After a power cut `target` is complete or absent. Raises OSError when it exists."""
    scratch.rename(target)
    sync_directory(target.parent)


def replace(scratch: Path, target: Path) -> None:
    """Like `give_name`, but an existing `target` is deleted first."""
    remove(target)
    give_name(scratch, target)


def remove(directory: Path) -> None:
    """Delete a directory, if it exists. It is renamed first, so that a power cut leaves no part of it under its name. What cannot be deleted, such
    as a file that is open on NFS, is left to `sweep`."""
    if directory.exists():
        aside = directory.with_name(f".{directory.name}{DELETING}{secrets.token_hex(4)}")
        directory.rename(aside)
        sync_directory(directory.parent)
        shutil.rmtree(aside, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Delete what an interrupted or failed `remove` has left in a directory."""
    for aside in directory.glob(f".*{DELETING}*"):
        shutil.rmtree(aside, ignore_errors=True)


def fingerprint(file: Path, tally: Tally) -> tuple[int, str]:
    """Size in bytes and sha256 of a file. The file is durable when this returns."""
    digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
    with file.open("rb", buffering=0) as stream:
        os.fsync(stream.fileno())
        while count := stream.readinto(block):
            digest.update(block[:count])
            tally.add(count)
        return stream.tell(), digest.hexdigest()


def tree(directory: Path) -> list[Path]:
    """Every file below a directory, sorted, so that all ranks see the same order."""
    return sorted(p for p in directory.rglob("*") if p.is_file())


class Hashed:
    """A file that is written from its beginning to its end. The processor copies and hashes while the disk takes the previous piece. What is small
    is gathered first: torch writes a tensor in 39 parts.

    Raises OSError, of a sync in the next call after it.
    """

    def __init__(self, file: Path, tally: Tally) -> None:
        """`tally`: counts the bytes that are durable."""
        self.bytes = 0
        """That were given to it."""
        self._tally, self._digest = tally, hashlib.sha256()
        self._gathered, self._cached = bytearray(), 0
        self._stream = file.open("wb")
        self._syncing: Future[None] | None = None
        self._pool = ThreadPoolExecutor(2, "checkpoint-help")  # one hashes, one syncs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        self._stream.close()

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        if len(view) > SMALL_BYTES:
            self._write_gathered()
            self._write_pieces(view)
        else:
            self._gathered += view
            if len(self._gathered) > SMALL_BYTES:
                self._write_gathered()
        self.bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """torch.save asks for it after each tensor; nobody reads the file before its end."""

    def fingerprint(self) -> tuple[int, str]:
        """Size in bytes and sha256 of all that was written, which is durable now."""
        self._write_gathered()
        self._synced()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._tally.add(self._cached)
        return self.bytes, self._digest.hexdigest()

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._write_pieces(memoryview(gathered))

    def _write_pieces(self, view: memoryview) -> None:
        for start in range(0, len(view), PIECE_BYTES):
            self._write(view[start : start + PIECE_BYTES])

    def _write(self, piece: memoryview) -> None:
        hashing = self._pool.submit(self._digest.update, piece) if len(piece) > SMALL_BYTES else None
        self._stream.write(piece)
        self._cached += len(piece)
        if hashing:
            hashing.result()  # before the caller may change what it gave
        else:
            self._digest.update(piece)
        if self._cached >= PIECE_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._synced()
        self._stream.flush()
        own = os.dup(self._stream.fileno())  # the file may be closed meanwhile
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
