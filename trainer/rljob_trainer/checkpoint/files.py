"""Small file operations that survive a kill at any point, and the count of bytes that shows that large ones move."""

import hashlib
import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK_BYTES = 2**20
"""That are read at a time."""

DELETING = ".deleting-"
"""In the hidden name of a directory that is being deleted."""


class Tally:
    """Bytes that were written to the disk or read from it so far, by any number of threads."""

    def __init__(self) -> None:
        self._lock, self.bytes = threading.Lock(), 0

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


def write_json(file: Path, content: Any) -> None:
    """Whole or not at all, and on the disk when this returns."""
    scratch = file.with_name(file.name + ".tmp")
    with scratch.open("w") as stream:
        json.dump(content, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make names in it durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_names(directory: Path) -> None:
    """Make all names below it durable."""
    for path, _, _ in directory.walk(top_down=False):
        sync_directory(path)


def make_directory(directory: Path) -> None:
    """Unless it is there, with the parents that it lacks; their names are durable when this returns."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def sync(directory: Path, heartbeat: Callable[[], None] = lambda: None) -> None:
    """Make all files and names below it durable. `heartbeat`: called after each file."""
    for file in tree(directory):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
        heartbeat()
    sync_names(directory)


def give_name(scratch: Path, target: Path) -> None:
    """Give a directory that is synced the name `target`: after a power cut it is whole or not there. Raises OSError when something has the name."""
    scratch.rename(target)
    sync_directory(target.parent)


def replace(scratch: Path, target: Path) -> None:
    """Like `give_name`; what has the name is deleted."""
    remove(target)
    give_name(scratch, target)


def remove(directory: Path) -> None:
    """If it is there. It loses its name first, so that no power cut leaves a part of it under that name. What cannot be deleted, such as a file that
    is open on NFS, is left to `sweep`."""
    if directory.exists():
        aside = directory.with_name(f".{directory.name}{DELETING}{secrets.token_hex(4)}")
        directory.rename(aside)
        sync_directory(directory.parent)
        shutil.rmtree(aside, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Delete what a kill, or an error, has left in it of what was removed."""
    for aside in directory.glob(f".*{DELETING}*"):
        shutil.rmtree(aside, ignore_errors=True)


def fingerprint(file: Path, tally: Tally) -> tuple[int, str]:
    """Size in bytes and sha256 of a file, which is on the disk when this returns."""
    digest, block = hashlib.sha256(), memoryview(bytearray(BLOCK_BYTES))
    with file.open("rb", buffering=0) as stream:
        os.fsync(stream.fileno())
        while count := stream.readinto(block):
            digest.update(block[:count])
            tally.add(count)
        return stream.tell(), digest.hexdigest()


def tree(directory: Path) -> list[Path]:
    """Every file below, sorted by name, so that all ranks list them alike."""
    return sorted(p for p in directory.rglob("*") if p.is_file())
