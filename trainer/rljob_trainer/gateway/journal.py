"""A file of records that grows at its end. A record is on the disk when `append` returns, and is read again as a whole or not at all.

A record is its length and checksum, then JSON, and bytes. What a crash left half-written at the end is cut off.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HEAD = struct.Struct(">IIQ")
"""Checksum, length of the JSON, length of the bytes."""


class JournalRecord(NamedTuple):
    """What is written down at a time."""

    fields: dict[str, Any]
    body: bytes = b""


class Journal:
    """One file. Not for several threads at a time."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. Raises OSError."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records = list(_read(path))
        """Those that were in the file when it was opened."""
        self._file = path.open("ab")
        self._file.truncate(sum(len(_encoded(record)) for record in self.records))
        _sync_directory(path.parent)

    def append(self, *records: JournalRecord) -> None:
        """Write records durably. Raises OSError."""
        self._file.write(b"".join(map(_encoded, records)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def replace(self, records: Iterable[JournalRecord]) -> None:
        """Have the file hold these records alone: durably, and at every moment either the old ones or these. Raises OSError."""
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(b"".join(map(_encoded, records)))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        _sync_directory(self._path.parent)
        self._file.close()
        self._file = self._path.open("ab")

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)


def _encoded(record: JournalRecord) -> bytes:
    fields = json.dumps(record.fields, separators=(",", ":")).encode()
    content = fields + record.body
    return _HEAD.pack(zlib.crc32(content), len(fields), len(record.body)) + content


def _read(path: Path) -> Iterator[JournalRecord]:
    content = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _HEAD.size <= len(content):
        checksum, fields, body = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        block = content[at : at + fields + body]
        if len(block) < fields + body or zlib.crc32(block) != checksum:
            return
        yield JournalRecord(json.loads(block[:fields]), block[fields:])
        at += fields + body


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
