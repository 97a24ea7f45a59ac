"""Copies a source to its directory. What was begun is resumed; the directory counts when its record is written, after all files."""

import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from rljob_api.spec.common import Source
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.sources.record import FetchedFile, FetchRecord, is_fetched, require_own, write_record
from rljob_trainer.sources.stores import OURS, Digests, Listing, RemoteFile, list_files, read_blocks

SECRETS = {
    "hf": "HF_TOKEN",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Variables that clients take credentials from."""
DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""What the clients of object stores say, whose errors have no status."""


def explained(field: str, address: str, error: Exception) -> Exception:
    """Of a store whose `address` is in `field`: ConfigurationError, or OSError for what may pass, such as a store that does not answer."""
    chain = list(_chain(error))
    said = " ".join(f"{chain[-1] if isinstance(error, FileNotFoundError) else error}".split())[:500]
    if any(_status(e) in (401, 403) for e in chain) or any(word in said for word in DENIED):
        secret = SECRETS.get(urlsplit(address).scheme)
        fix = f"put {secret} into a Secret and name it in spec.envFrom" if secret else "make it readable"
        return ConfigurationError(field, address, f"access is refused: {said}", fix)
    if isinstance(chain[-1], FileNotFoundError) or any(_status(e) == 404 for e in chain):
        fix = "correct the address, the revision or the patterns of files"
        return ConfigurationError(field, address, f"nothing is found there: {said}", fix)
    return OSError(f"{address}: {type(chain[-1]).__name__}: {said}")


def _status(error: BaseException) -> int:
    """Of HTTP, as the clients' exceptions hold it; 0: none."""
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", 0) or getattr(error, "status", 0) or 0)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


FILES_AT_A_TIME = 4
TRIES = 5
FIRST_WAIT_SECONDS = 1.0
"""Before the second try; doubles with each."""
LOCK_POLL_SECONDS = 1.0

Advanced = Callable[[int, int], None]
"""Called with the bytes that are there and those that there will be, 0 while unknown; also while another job fetches the same."""

log = logging.getLogger(__name__)


def fetch(field: str, source: Source, advanced: Advanced) -> None:
    """Until all of it is there. `field`: the field of the spec that names it. Raises ConfigurationError for what its author has to correct."""
    directory = Path(source.path)
    try:
        require_own(field, source)
        (directory / OURS / "partial").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule = f"it cannot be written: {error.strerror}"
        raise ConfigurationError(
            f"{field}.path", source.path, rule, "mount a volume there that trainer pods can write to"
        ) from error
    with _alone(directory, advanced):
        if not is_fetched(source):
            _fetch(field, source, directory, advanced)


def _fetch(field: str, source: Source, directory: Path, advanced: Advanced) -> None:
    listing = _listed(field, source)
    partial = {file.name: directory / OURS / "partial" / _key(listing, file) for file in listing.files}
    there = {name: path.stat().st_size for name, path in partial.items() if path.exists()}
    _require_room(field, source, directory, sum(f.size for f in listing.files if f.size > 0) - sum(there.values()))
    counts = _Counts(listing, there, advanced)
    with ThreadPoolExecutor(FILES_AT_A_TIME) as threads:
        fetched = list(threads.map(lambda file: _copy(listing, file, partial[file.name], counts), listing.files))
    for file in listing.files:
        (directory / file.name).parent.mkdir(parents=True, exist_ok=True)
        partial[file.name].replace(directory / file.name)
    write_record(directory, FetchRecord(source.source, source.files, listing.revision, fetched))
    shutil.rmtree(directory / OURS / "partial", ignore_errors=True)


def _listed(field: str, source: Source) -> Listing:
    def attempt() -> Listing:
        try:
            return list_files(source)
        except Exception as error:
            raise explained(f"{field}.source", source.source, error) from error

    return again(attempt, source.source)


class _Counts:
    """Bytes of all files, passed on as they arrive."""

    def __init__(self, listing: Listing, there: dict[str, int], advanced: Advanced) -> None:
        self._there, self._advanced = dict(there), advanced
        sizes = [file.size for file in listing.files]
        self._total = 0 if min(sizes) < 0 else sum(sizes)
        advanced(sum(there.values()), self._total)

    def set(self, name: str, size: int) -> None:
        self._there[name] = size
        self._advanced(sum(self._there.copy().values()), self._total)


def _copy(listing: Listing, file: RemoteFile, partial: Path, counts: _Counts) -> FetchedFile:
    """Raises OSError when it arrives otherwise than its source says, twice."""
    for _ in range(2):
        copied = again(lambda: _resume(listing, file, partial, counts), file.name)
        if copied:
            return copied
        partial.unlink()  # what was there of it, for example from before a power cut, is not the file's
        log.warning("%s: the bytes are not those of the source; fetching it again", file.name)
    raise OSError(f"{file.name}: what arrives has another digest than {file.digest}")


def _resume(listing: Listing, file: RemoteFile, partial: Path, counts: _Counts) -> FetchedFile | None:
    """The rest of a file, after what is there of it. None when the digest is another than the source's."""
    digests = Digests(file.digest, file.size)
    with partial.open("r+b" if partial.exists() and file.size >= 0 else "w+b") as stream:
        for block in read_blocks(partial):
            digests.add(block)
            stream.seek(len(block), os.SEEK_CUR)
            counts.set(file.name, stream.tell())
        for block in listing.read(file, stream.tell()) if stream.tell() != file.size else ():
            stream.write(block)
            stream.flush()
            os.fdatasync(stream.fileno())
            digests.add(block)
            counts.set(file.name, stream.tell())
        size = stream.tell()
    if 0 <= file.size != size:
        raise ConnectionError(f"{file.name} ended after {size} of {file.size} bytes")
    return FetchedFile(file.name, size, digests.sha256) if digests.agree else None


def again[T](do: Callable[[], T], what: str, final: tuple[type[Exception], ...] = (ConfigurationError,)) -> T:
    """With patience for a store that does not answer; what is `final` is raised at once."""
    for attempt in range(1, TRIES + 1):
        try:
            return do()
        except final:
            raise
        except Exception as error:
            if attempt == TRIES:
                raise
            log.warning("%s: %s; trying again", what, " ".join(str(error).split()) or type(error).__name__)
            time.sleep(FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
    raise AssertionError


def _key(listing: Listing, file: RemoteFile) -> str:
    """Name of what is there of a file, so that bytes of another version of it are not taken for its own."""
    identity = repr((listing.revision, file.name, file.size, file.version, file.digest))
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


def _require_room(field: str, source: Source, directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        rule = f"{needed / 1e9:.1f} GB are to be fetched, and {free / 1e9:.1f} GB are free"
        raise ConfigurationError(
            f"{field}.path", source.path, rule, "choose a larger volume, or delete what is not used"
        )


def bytes_in(directory: Path) -> int:
    """Of its files. Another process may move one away at any time."""
    size = 0
    for file in directory.glob("*"):
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size


@contextmanager
def _alone(directory: Path, advanced: Advanced) -> Iterator[None]:
    """One writer at a time, also of several jobs. Where the file system has no locks, two that fetch the same write the same bytes."""
    with (directory / OURS / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                advanced(bytes_in(directory / OURS / "partial"), 0)
                time.sleep(LOCK_POLL_SECONDS)
                continue
            except OSError as error:
                log.warning("%s has no locks (%s)", directory, error.strerror)
            break
        yield
