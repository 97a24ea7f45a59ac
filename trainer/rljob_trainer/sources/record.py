"""What a directory was fetched from: `.rljob/source.json` in it, written when all its files are there."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_api.spec.common import Source
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources.stores import OURS
from rljob_trainer.textfile import read_text, replace


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file as it was when it had been fetched."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """A source, complete."""

    source: str
    patterns: list[str]
    revision: str
    files: list[FetchedFile]


def read_record(directory: Path) -> FetchRecord | None:
    """None when nothing was fetched to it completely."""
    text = read_text(directory / OURS / "source.json")
    if not text:
        return None
    raw = json.loads(text)
    return FetchRecord(**raw | {"files": [FetchedFile(**file) for file in raw["files"]]})


def write_record(directory: Path, record: FetchRecord) -> None:
    replace(directory / OURS / "source.json", json.dumps(asdict(record), indent=1))


def is_fetched(source: Source) -> bool:
    """Whether its directory has all files of it, at their sizes. Their digests were compared when they were fetched."""
    directory = Path(source.path)
    record = read_record(directory)
    return record is not None and _matches(record, source) and not missing(directory, record)


def are_fetched(sources: Iterable[Source]) -> bool:
    return all(is_fetched(source) for source in sources)


def missing(directory: Path, record: FetchRecord) -> list[str]:
    """Names of files that are gone, or have another size."""
    return [file.name for file in record.files if _size(directory / file.name) != file.size]


def require_own(field: str, source: Source) -> None:
    """Raises ConfigurationError when the directory holds what was not fetched from this source: it is somebody's."""
    directory = Path(source.path)
    record = read_record(directory)
    fix = "choose another path, or delete the directory"
    if record and not _matches(record, source):
        rule = f"holds what was fetched from {record.source}" + (
            f", files {record.patterns}" if record.patterns else ""
        )
        raise ConfigurationError(f"{field}.path", source.path, f"it {rule}", fix)
    if record is None and directory.is_dir():
        others = sorted(entry.name for entry in directory.iterdir() if entry.name != OURS)
        if others and not (directory / OURS).is_dir():
            rule = f"it holds files that were not fetched ({', '.join(others[:3])})"
            raise ConfigurationError(
                f"{field}.path", source.path, rule, f"{fix}; or remove the source, and they are used"
            )


def _matches(record: FetchRecord, source: Source) -> bool:
    """Whoever fetched all files of a source has those that somebody chooses."""
    return record.source == source.source and record.patterns in ([], source.files)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


POLL_SECONDS = 1.0


async def until_fetched(sources: Callable[[], Iterable[Source]]) -> None:
    """`sources`: of the spec as it is at the moment. A volume that hangs holds up nobody but the caller."""
    while True:
        if await asyncio.to_thread(are_fetched, list(sources())):
            return
        await asyncio.sleep(POLL_SECONDS)
