"""The files of a source: their names, sizes and digests, and their bytes from any position on.

hf      huggingface_hub; token and address from HF_TOKEN and HF_ENDPOINT
s3, gs  pyarrow, which has the clients built in; credentials as the clouds' own tools find them, for example AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL
        and GOOGLE_APPLICATION_CREDENTIALS
https   one file, by the standard library
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from rljob_api.spec.common import Source

OURS = ".rljob"
"""Directory, in that of a source, which holds what is not the source's."""
BLOCK_BYTES = 16 * 2**20
"""That are asked for at a time."""
WEB_SECONDS = 60.0
"""Without a byte."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source."""

    name: str
    """Its path below the source."""
    path: str
    """Its path in the store."""
    size: int
    """In bytes; -1: the store does not say."""
    version: str = ""
    """Changes when the file does, as far as the store can tell."""
    digest: tuple[str, str] | None = None
    """Algorithm (sha256, md5 or git) and hexadecimal value, where the store or the source says it."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source consists of."""

    read: Callable[[RemoteFile, int], Iterator[bytes]]
    """A file's bytes from a position on, not above its size."""
    revision: str
    """The commit of a hub's repository; empty elsewhere."""
    files: tuple[RemoteFile, ...]
    """By name."""


def list_files(source: Source) -> Listing:
    """Asks the store. Raises FileNotFoundError when it has no such file, and whatever its client raises when it is not reached or refuses."""
    scheme = urlsplit(source.source).scheme
    listing = {"hf": _hub, "http": _web, "https": _web}.get(scheme, _objects)(source.source)
    wanted = (f for f in listing.files if not f.name.startswith(f"{OURS}/") and selected(f.name, source.files))
    kept = tuple(sorted(wanted, key=lambda f: f.name))
    if not kept:
        what = f"none of its {len(listing.files)} files matches {source.files}" if listing.files else "it holds no file"
        raise FileNotFoundError(what)
    return Listing(listing.read, listing.revision, kept)


def selected(name: str, patterns: list[str]) -> bool:
    """Whether a file is copied: some pattern matches, and no pattern that begins with `!`."""
    left_out = [p[1:] for p in patterns if p.startswith("!")]
    wanted = [p for p in patterns if not p.startswith("!")] or ["*"]
    return any(fnmatchcase(name, p) for p in wanted) and not any(fnmatchcase(name, p) for p in left_out)


def _hub(url: str) -> Listing:
    from huggingface_hub import HfApi, HfFileSystem

    endpoint = os.environ.get("HF_ENDPOINT")
    api, store = HfApi(endpoint), HfFileSystem(endpoint=endpoint, skip_instance_cache=True)
    where: Any = store.resolve_path(url.removeprefix("hf://"))
    commit = api.repo_info(where.repo_id, repo_type=where.repo_type, revision=where.revision).sha or ""
    pinned = f"{'datasets/' if where.repo_type == 'dataset' else ''}{where.repo_id}@{commit}"
    root = f"{pinned}/{where.path_in_repo}".rstrip("/")
    entries: Any = store.find(root, detail=True)
    files = tuple(_hub_file(root, path, info) for path, info in entries.items() if info["type"] == "file")
    return Listing(_reader(lambda path: store.open(path, "rb", cache_type="none")), commit, files)


def _hub_file(root: str, path: str, info: Mapping[str, Any]) -> RemoteFile:
    """Large files have a sha256, the others the name of git's blob."""
    lfs = info.get("lfs")
    digest = ("sha256", lfs["sha256"]) if lfs else ("git", info["blob_id"])
    return RemoteFile(_name(root, path), path, info["size"], digest=digest)


def _objects(url: str) -> Listing:
    """Below a directory, or the file itself."""
    from pyarrow.fs import FileSelector, FileType

    parts = urlsplit(url)
    client = client_of(parts.scheme, parts.netloc)
    root = f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
    info = client.get_file_info(root)
    below = client.get_file_info(FileSelector(root, recursive=True)) if info.type == FileType.Directory else [info]
    files = [f for f in below if f.type == FileType.File]
    listed = (RemoteFile(_name(root, f.path), f.path, f.size, str(f.mtime_ns)) for f in files)
    return Listing(_reader(client.open_input_file), "", tuple(listed))


def client_of(scheme: str, bucket: str) -> Any:
    """pyarrow's file system of `s3`, `gs` or `file`."""
    from pyarrow.fs import LocalFileSystem

    match scheme:
        case "s3":
            return _s3(os.environ, bucket)
        case "gs":
            return _gs(os.environ)
        case _:
            return LocalFileSystem()


def _s3(environment: Mapping[str, str], bucket: str) -> Any:
    """Of an S3-compatible store at AWS_ENDPOINT_URL, else of Amazon, in the bucket's own region."""
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not endpoint:
        return S3FileSystem(region=region or resolve_s3_region(bucket))
    scheme, _, host = endpoint.rpartition("://")
    return S3FileSystem(region=region or "us-east-1", endpoint_override=host, scheme=scheme or "https")


def _gs(environment: Mapping[str, str]) -> Any:
    """Of Google, or of an emulator at STORAGE_EMULATOR_HOST."""
    from pyarrow.fs import GcsFileSystem

    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if not emulator:
        return GcsFileSystem()
    scheme, _, host = emulator.rpartition("://")
    return GcsFileSystem(anonymous=True, endpoint_override=host, scheme=scheme or "http")


def _web(url: str) -> Listing:
    """One file. Not asked for its head alone, which addresses that were signed for reading do not allow."""
    address, _, fragment = url.partition("#")
    with urlopen(address, timeout=WEB_SECONDS) as answer:
        size = int(answer.headers.get("Content-Length") or -1)
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    name = PurePosixPath(unquote(urlsplit(address).path)).name
    digest = ("sha256", fragment.removeprefix("sha256=")) if fragment else None
    return Listing(_read_web, "", (RemoteFile(name, address, size, version, digest),))


def _read_web(file: RemoteFile, start: int) -> Iterator[bytes]:
    """From a server that knows no ranges, what is there already is read once more."""
    request = Request(file.path, headers={"Range": f"bytes={start}-"} if start else {})
    with urlopen(request, timeout=WEB_SECONDS) as answer:
        skipped = start if answer.status == HTTPStatus.OK else 0
        while skipped:
            block = answer.read(min(BLOCK_BYTES, skipped))
            if not block:
                break
            skipped -= len(block)
        while block := answer.read(BLOCK_BYTES):
            yield block


def _reader(opened: Callable[[str], Any]) -> Callable[[RemoteFile, int], Iterator[bytes]]:
    def read(file: RemoteFile, start: int) -> Iterator[bytes]:
        with opened(file.path) as stream:
            stream.seek(start)
            while block := stream.read(BLOCK_BYTES):
                yield block

    return read


def _name(root: str, path: str) -> str:
    """Of a file below the root, or of the root itself."""
    return path.removeprefix(root).lstrip("/") or PurePosixPath(path).name


READ_BYTES = 2**20


class Digests:
    """Of one file of `size` bytes, while they arrive: its sha256, and the one that the source names."""

    def __init__(self, named: tuple[str, str] | None, size: int) -> None:
        self._sha256, self._named = hashlib.sha256(), named
        kind = named[0] if named else "sha256"
        self._other = None if kind == "sha256" else hashlib.new({"git": "sha1"}.get(kind, kind))
        if self._other and kind == "git":
            self._other.update(f"blob {size}\0".encode())

    def add(self, block: bytes) -> None:
        self._sha256.update(block)
        if self._other:
            self._other.update(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def agree(self) -> bool:
        """True also when the source names none."""
        return self._named is None or (self._other or self._sha256).hexdigest() == self._named[1]


def read_blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            yield block
