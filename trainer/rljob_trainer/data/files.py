"""Data files to records, one format per reader, and the columns of a record by name. What they mean is decided in rows.py."""

import errno
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_trainer.failure import ConfigurationError, is_outage
from rljob_trainer.model_files import is_pointer

Record = Mapping[str, Any]
UTF8 = "save the file as UTF-8"
ROWS_AT_ONCE = 1024
"""Of a columnar file: what is in memory in addition to the prompts."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file as the spec names it, and a row of it."""

    field: str
    path: str
    row: int | None = None
    """From 1; in a file with one object per line the number of the line."""
    made: Path | None = None
    """The file of what spec.data.custom made of its rows, which are read in their place; None: they are read as they are."""

    def at(self, row: int) -> "Place":
        return replace(self, row=row)

    def error(self, rule: str, fix: str) -> ConfigurationError:
        return ConfigurationError(self.field, self.path + (f" row {self.row}" if self.row else ""), rule, fix)


def places(field: str, paths: Iterable[str]) -> list[Place]:
    """The files that a list at `field` names."""
    return [Place(f"{field}[{i}]", path) for i, path in enumerate(paths)]


MadeFiles = Callable[[Sequence[Place]], Sequence[Place]]
"""Gives files with what spec.data.custom makes of their rows; `list`: as they are."""


def read_records(file: Place, keys: Sequence[str]) -> Iterator[tuple[Place, Record]]:
    """The file's objects in order; of columnar files only the columns that `keys` (names, or dotted paths into nested columns) need.

    Raises ConfigurationError for a file that is missing, of no known format, unreadable, or without a row; OSError when its volume is away.
    """
    path = checked(file, READERS)
    format_name, read = READERS[path.suffix] if file.made is None else (MADE, _made)
    row = 0
    with readable(file, format_name):
        for row, record in read(path, keys):
            yield file.at(row), record
    if row == 0:
        raise file.error("holds no row", "leave the file out or fill it")


def checked(file: Place, known: Collection[str]) -> Path:
    """The path of its rows. Raises ConfigurationError when there is none, or its name ends in none of the `known` suffixes."""
    if file.made:
        return file.made
    path = Path(file.path)
    if path.is_dir():
        raise file.error("is a directory", "name the files in it, which end in " + ", ".join(known))
    if not path.is_file():
        fix = "correct the path, or mount the volume that holds it in spec.volumes"
        raise file.error("there is no such file in the trainer pod", fix)
    if path.suffix not in known:
        raise file.error(f"its name ends in none of {', '.join(known)}", "convert the file, or rename it")
    if is_pointer(path):
        raise file.error("is a Git LFS pointer, not the file itself", "fetch it with git lfs pull")
    return path


@contextmanager
def readable(file: Place, format_name: str) -> Iterator[None]:
    """Turns what readers raise into ConfigurationError, but for a volume that is away or full."""
    try:
        yield
    except ConfigurationError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_outage(error) or getattr(error, "errno", None) == errno.ENOSPC:  # of the scratch directory
            raise
        fix = UTF8 if isinstance(error, UnicodeDecodeError) else f"write the file again as {format_name}"
        raise file.error(f"cannot be read as {format_name}: {error}", fix) from error


def columns(file: Place, record: Record) -> Collection[str]:
    """Names of all columns: a record of a columnar file has only those that were asked for."""
    if file.made:
        return record
    if file.path.endswith(".parquet"):
        return pq.read_schema(file.path).names
    if file.path.endswith(".arrow"):
        with pa.memory_map(file.path) as source:
            return open_arrow(source).schema.names
    return record


def _parquet(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, Record]]:
    with pq.ParquetFile(path, memory_map=True) as file:
        names = file.schema_arrow.names
        yield from _rows(file.iter_batches(ROWS_AT_ONCE, columns=_needed(names, keys)))


def _arrow(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, Record]]:
    with pa.memory_map(str(path)) as source:
        reader = open_arrow(source)
        columns = _needed(reader.schema.names, keys)
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from _rows(reader.get_batch(i).select(columns) for i in range(reader.num_record_batches))
        else:
            yield from _rows(batch.select(columns) for batch in reader)


def open_arrow(source: pa.MemoryMappedFile) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """The IPC file format, or the stream format that Hugging Face datasets writes."""
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Record]]:
    row = 0
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            for record in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                row += 1
                yield row, record


def _needed(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Top-level columns of `keys`; all when nothing fits, so that a complaint can name them."""
    return [n for n in names if any(k == n or k.startswith(n + ".") for k in keys)] or list(names)


def _json(path: Path, _: Sequence[str]) -> Iterator[tuple[int, Record]]:
    """A list of objects, which is read as a whole, or one object per line, which some tools also call .json."""
    with path.open(encoding="utf-8-sig") as stream:
        if first_character(stream) == "[":
            yield from ((row, checked_record(value)) for row, value in enumerate(parsed(stream.read()), 1))
        else:
            yield from _json_lines(stream)


def first_character(stream: IO[str]) -> str:
    """The first one that is not white space; "" in an empty file. The stream is at its beginning afterwards."""
    character = next((c for c in iter(lambda: stream.read(1), "") if not c.isspace()), "")
    stream.seek(0)
    return character


def _jsonl(path: Path, _: Sequence[str]) -> Iterator[tuple[int, Record]]:
    with path.open(encoding="utf-8-sig") as stream:
        yield from _json_lines(stream)


def parsed(text: str | bytes) -> Any:
    """What JSON text stands for, which a byte order mark may begin, as in files that were joined. Raises ValueError, also for an object with two
    values of one name, of which JSON does not say which counts."""
    text = text.decode() if isinstance(text, bytes) else text
    return DECODER.decode(text.removeprefix("\ufeff"))


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in made if names.count(name) > 1)
        raise ValueError(f"an object has {twice!r} more than once")
    return made


DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Made once: to make one for each row costs as much as to read a short one."""
BLANK = " \t\r\n"
"""White space as JSON has it. A line of nothing else is no row: data/tables.py counts the same rows."""


def _json_lines(stream: IO[str]) -> Iterator[tuple[int, Record]]:
    for number, line in enumerate(stream, 1):
        if line.strip(BLANK):
            try:
                yield number, checked_record(parsed(line.rstrip("\r\n")))
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"line {number} does not hold one object: {error.msg} (column {error.colno})"
                ) from error
            except ValueError as error:
                raise ValueError(f"line {number} does not hold one object: {error}") from error


MADE = "rows of spec.data.custom"
"""A file of lines of JSON, each a pair: the number of the row in the data file, and the object that was made of it."""


def _made(path: Path, _: Sequence[str]) -> Iterator[tuple[int, Record]]:
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            number, record = json.loads(line)
            yield number, record


def checked_record(value: object) -> Record:
    """Raises ValueError for anything but an object."""
    if isinstance(value, dict):
        return value
    raise ValueError(f"{str(value)[:80]!r} stands where an object of columns belongs")


Reader = Callable[[Path, Sequence[str]], Iterator[tuple[int, Record]]]
READERS: dict[str, tuple[str, Reader]] = {
    ".parquet": ("Parquet", _parquet),
    ".arrow": ("Arrow", _arrow),
    ".json": ("a JSON list of objects", _json),
    ".jsonl": ("one JSON object per line", _jsonl),
}


ABSENT = object()
"""In place of a value: there is no such column."""


def find(key: str, record: Record) -> Any:
    """The column of that name, else the value that the dotted path leads to; null when it leads into one."""
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            return ABSENT
        value = value[part]
    return value


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
