"""Data files with random access to their rows, none of which is held in memory: row i of ten million costs one read.

Arrow files are mapped; Parquet, which can only be read a row group at a time, is written as Arrow into a scratch directory first; of JSON lines the
offsets are kept, 8 bytes each. Only a .json that is one list is read as a whole.
"""

import json
import mmap
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.data.files import (
    BLANK,
    MADE,
    ROWS_AT_ONCE,
    Place,
    Record,
    checked,
    checked_record,
    first_character,
    open_arrow,
    parsed,
    readable,
)

Longs = npt.NDArray[np.int64]

SCAN_BYTES = 1 << 26
"""Of a file of JSON lines, between two looks for line ends."""


class Table(Protocol):
    """The rows of one file."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Record:
        """From 0. Raises ValueError for a row that does not hold one object."""
        ...

    def number(self, row: int) -> int:
        """What people count the row as: from 1; in a file with one object per line the number of the line."""
        ...


class Rows:
    """Records in memory."""

    def __init__(self, records: Sequence[Record]):
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, row: int) -> Record:
        return checked_record(self._records[row])

    def number(self, row: int) -> int:
        return row + 1


class ArrowTable:
    """Record batches of a mapped file, each looked up when it is needed."""

    def __init__(self, lengths: Sequence[int], batch: Callable[[int], pa.RecordBatch]):
        self._starts = [0, *accumulate(lengths)]
        self._batch = batch

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> Record:
        number = bisect_right(self._starts, row) - 1
        return self._batch(number).slice(row - self._starts[number], 1).to_pylist()[0]

    def number(self, row: int) -> int:
        return row + 1


class LinesTable:
    """A mapped file with one JSON object per line; empty lines are no rows."""

    def __init__(self, path: Path):
        with path.open("rb") as stream:
            self._bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        starts, ends, blank = _lines(self._bytes)
        self._starts, self._ends = np.delete(starts, blank), np.delete(ends, blank)
        self._rows_before_blank = blank - np.arange(len(blank))

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> Record:
        return checked_record(parsed(self._bytes[self._starts[row] : self._ends[row]]))

    def number(self, row: int) -> int:
        return 1 + row + int(np.searchsorted(self._rows_before_blank, row, side="right"))


class MadeTable(LinesTable):
    """Of spec.data.custom: each line a pair of the row's number in the data file and what was made of it."""

    def __getitem__(self, row: int) -> Record:
        return checked_record(self._pair(row)[1])

    def number(self, row: int) -> int:
        return int(self._pair(row)[0])

    def _pair(self, row: int) -> Sequence[Any]:
        pair: Sequence[Any] = json.loads(self._bytes[self._starts[row] : self._ends[row]])
        return pair


def open_table(file: Place, scratch: Path) -> Table:
    """The file's rows. `scratch`: an existing directory, for files without random access.

    Raises ConfigurationError for a file that is missing, of no known format, unreadable, or without a row; OSError when its volume is away.
    """
    path = checked(file, OPENERS)
    format_name, opened = OPENERS[path.suffix] if file.made is None else (MADE, _made)
    with readable(file, format_name):
        table = opened(path, scratch)
    if not len(table):
        raise file.error("holds no row", "leave the file out or fill it")
    return table


def _arrow(path: Path, _: Path) -> Table:
    """Batches of the file format are found by number; those of the stream format are views of the map once they were met."""
    reader = open_arrow(pa.memory_map(str(path)))
    if isinstance(reader, pa.RecordBatchFileReader):
        lengths = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        return ArrowTable(lengths, reader.get_batch)
    batches = list(reader)
    return ArrowTable([batch.num_rows for batch in batches], batches.__getitem__)


def _parquet(path: Path, scratch: Path) -> Table:
    target = scratch / f"{len(list(scratch.iterdir()))}.arrow"
    with (
        pq.ParquetFile(path, memory_map=True) as file,
        pa.OSFile(str(target), "wb") as sink,
        pa.ipc.new_file(sink, file.schema_arrow) as writer,
    ):
        for batch in file.iter_batches(ROWS_AT_ONCE):
            writer.write_batch(batch)
    return _arrow(target, scratch)


def _json(path: Path, scratch: Path) -> Table:
    with path.open(encoding="utf-8-sig") as stream:
        if first_character(stream) == "[":
            return Rows(parsed(stream.read()))
    return _jsonl(path, scratch)


def _jsonl(path: Path, _: Path) -> Table:
    return LinesTable(path) if path.stat().st_size else Rows([])


def _made(path: Path, _: Path) -> Table:
    return MadeTable(path)


OPENERS: dict[str, tuple[str, Callable[[Path, Path], Table]]] = {
    ".parquet": ("Parquet", _parquet),
    ".arrow": ("Arrow", _arrow),
    ".json": ("a JSON list of objects", _json),
    ".jsonl": ("one JSON object per line", _jsonl),
}


def _lines(data: mmap.mmap) -> tuple[Longs, Longs, Longs]:
    """Where lines start and end, and the numbers of those that are empty, from 0."""
    ends = np.concatenate([_ends(data, at) for at in range(0, len(data), SCAN_BYTES)])
    if not len(ends) or ends[-1] != len(data) - 1:
        ends = np.append(ends, len(data))
    starts = np.concatenate(([3 if data[:3] == b"\xef\xbb\xbf" else 0], ends[:-1] + 1))
    first = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)]
    blank = [i for i in np.flatnonzero(first <= ord(" ")) if not data[starts[i] : ends[i]].strip(BLANK.encode())]
    return starts, ends, np.array(blank, np.int64)


def _ends(data: mmap.mmap, at: int) -> Longs:
    """Where lines end from `at` on, over SCAN_BYTES: with LF, CRLF, or the CR of old Macs, as Python reads texts."""
    part = np.frombuffer(data[at : at + SCAN_BYTES + 1], np.uint8)
    mac = (part == ord("\r")) & (np.append(part[1:], 0) != ord("\n"))
    return np.flatnonzero(((part == ord("\n")) | mac)[:SCAN_BYTES]) + at


class FileRows:
    """All columns of the rows of several files, counted one after another, read when a reward asks for them. Opened at the first look; threads may
    share it."""

    def __init__(self, files: Sequence[Place], scratch: Path):
        """`scratch`: a directory, which may be missing, for files without random access."""
        self._files, self._scratch = files, scratch
        self._tables: list[Table] = []
        self._starts = [0]
        self._lock = Lock()

    def __getitem__(self, index: int) -> Record:
        """Raises ConfigurationError for a file that has changed since it was read, OSError when its volume is away."""
        with self._lock:
            self._open()
            number = bisect_right(self._starts, index) - 1
            place = self._files[min(number, len(self._files) - 1)]
            try:
                return self._tables[number][index - self._starts[number]]
            except (ValueError, IndexError) as error:
                fix = "leave data files as they are while a job reads them"
                raise place.error(f"no longer holds the row of a prompt: {error}", fix) from error

    def place(self, index: int) -> Place:
        """Of a row that was read, for people."""
        with self._lock:
            self._open()
            number = bisect_right(self._starts, index) - 1
            file = self._files[number]
            return file.at(self._tables[number].number(index - self._starts[number]))

    def _open(self) -> None:
        if not self._tables:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._tables = [open_table(place, self._scratch) for place in self._files]
            self._starts = [0, *accumulate(map(len, self._tables))]
