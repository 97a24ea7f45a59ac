"""Small file operations that survive a kill at any point."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


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


def fingerprint(file: Path) -> tuple[int, str]:
    """Size in bytes and sha256 of a file, which is on the disk when this returns."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256")
        return stream.tell(), digest.hexdigest()


def tree(directory: Path) -> list[Path]:
    """Every file below, sorted by name, so that all ranks list them alike."""
    return sorted(p for p in directory.rglob("*") if p.is_file())
