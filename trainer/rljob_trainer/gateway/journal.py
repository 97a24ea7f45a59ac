"""A file of records that grows at its end. A record is on the disk when `append` returns, and is read again as a whole or not at all.

A record is a head with its lengths and checksums, then JSON, and bytes. What a crash left half-written at the end is cut off. All else that is no
record is damage: what came behind it was promised to clients, and nobody may go on without it.
"""

import errno
import json
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from rljob_api.callbacks import nothing

_HEAD = struct.Struct(">IIQ")
"""Checksum of the rest, length of the JSON, length of the bytes. The checksum of these three stands before them."""
_CHECKSUM = 4

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a volume that takes no more. Clients can delete what they have saved once a gateway serves."""

log = logging.getLogger(__name__)


class JournalDamaged(RuntimeError):
    """A file has something else than records. Nothing was changed."""


class JournalRecord(NamedTuple):
    """What is written down at a time."""

    fields: dict[str, Any]
    body: bytes = b""


class Journal:
    """One file. A thread may write although nobody waits for it any more: the next one waits for that."""

    def __init__(self, path: Path, check: Callable[[], None] = nothing) -> None:
        """Opens or makes the file, and writes anew what there is: whoever still has the former file open appends to one that nobody reads. Raises
        OSError, JournalDamaged. `check` is called before a write counts, and raises if it must not."""
        self._path, self._check, self._writing = path, check, threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records, self._size = _read(path)
        """`records`: those that were in the file when it was opened."""
        check()
        self._file = path.open("ab", buffering=0)
        cut = self._file.tell() - self._size
        if cut:
            log.warning("%s: cutting off %d bytes behind its last whole record", path, cut)
            self._file.truncate(self._size)
        sync_directory(path.parent)
        if self.records:
            self.renew(self.records)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    def renew(self, records: Iterable[JournalRecord]) -> None:
        """Have the file hold these records alone, which say no more than those that it has. On a full volume it stays as it is. Raises OSError."""
        try:
            self.replace(records)
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning("%s stays as it is: %s", self._path, error)

    def append(self, *records: JournalRecord) -> None:
        """Write records durably. Raises OSError: then none of them counts, and it can be called again."""
        block = b"".join(map(_encoded, records))
        with self._writing:
            self._check()  # a next owner that could not write the file anew has it, too
            self._file.truncate(self._size)  # what an append that failed has left: no record may stand behind it
            _write(self._file, block)
            self._check()
            self._size += len(block)

    def replace(self, records: Iterable[JournalRecord]) -> None:
        """Have the file hold these records alone: durably, and at every moment either the old ones or these. Raises OSError."""
        with self._writing:
            self._replace(b"".join(map(_encoded, records)))

    def _replace(self, block: bytes) -> None:
        if self._file.closed:
            raise ValueError(f"{self._path} is closed: it was removed")
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        file = new.open("ab", buffering=0)
        try:
            _write(file, block)
            self._check()
            new.replace(self._path)
        except BaseException:
            file.close()
            raise
        self._file.close()
        self._file, self._size = file, len(block)
        sync_directory(self._path.parent)

    def remove(self) -> None:
        """Delete the file, which nothing is written to any more."""
        with self._writing:
            self._file.close()
            self._path.unlink(missing_ok=True)


def _write(file: FileIO, block: bytes) -> None:
    remaining = memoryview(block)
    while remaining:
        remaining = remaining[file.write(remaining) :]
    os.fsync(file.fileno())


def _encoded(record: JournalRecord) -> bytes:
    fields = json.dumps(record.fields, separators=(",", ":")).encode()
    content = fields + record.body
    head = _HEAD.pack(zlib.crc32(content), len(fields), len(record.body))
    return zlib.crc32(head).to_bytes(_CHECKSUM) + head + content


def _read(path: Path) -> tuple[list[JournalRecord], int]:
    """The whole records of a file, and how many bytes they are. Raises JournalDamaged."""
    content = path.read_bytes() if path.exists() else b""
    records, end = list[JournalRecord](), 0
    while end + _CHECKSUM + _HEAD.size <= len(content):
        start = end + _CHECKSUM + _HEAD.size
        head = content[end + _CHECKSUM : start]
        if zlib.crc32(head) != int.from_bytes(content[end : end + _CHECKSUM]):
            raise _damaged(path, end, len(content))
        checksum, fields, body = _HEAD.unpack(head)
        block = content[start : start + fields + body]
        if len(block) < fields + body:
            break
        if zlib.crc32(block) != checksum:
            raise _damaged(path, end, len(content))
        records.append(JournalRecord(json.loads(block[:fields]), block[fields:]))
        end = start + fields + body
    return records, end


def _damaged(path: Path, place: int, size: int) -> JournalDamaged:
    return JournalDamaged(
        f"{path} is damaged at byte {place} of {size}: nothing is served, so that nothing is lost. Restore the file from a copy; or, to go on "
        f"without what clients did after that, copy the directory {path.parent} and run: truncate -s {place} {path}"
    )


def sync_directory(path: Path) -> None:
    """Have names in a directory last."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
