"""Copies directories of a run to an object store. What makes a directory complete is removed there first and written last, so that whoever finds
it finds all the others."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rljob_trainer.sources.fetch import FILES_AT_A_TIME, again, explained
from rljob_trainer.sources.stores import BLOCK_BYTES, client_of


class Stopped(Exception):
    """Nobody waits for the rest any more."""


class ObjectStore:
    """A directory of an object store, which `field` of the spec names by its address."""

    def __init__(self, field: str, address: str):
        parts = urlsplit(address)
        self._field, self._address, self._local = field, address, parts.scheme == "file"
        self._client: Any = client_of(parts.scheme, parts.netloc)
        self._root = f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
        self._stopped, self._counting = threading.Event(), threading.Lock()
        self.moved = 0
        """Bytes so far: grows while something moves."""

    def stop(self) -> None:
        """Whatever is copied ends with Stopped at its next block."""
        self._stopped.set()

    def prove_writable(self) -> None:
        """Write a small file. Raises ConfigurationError for an address or credentials that its author has to correct, OSError for a store that does
        not answer."""

        def attempt() -> None:
            try:
                self._write(".rljob-writable", b"rljob\n")
            except Exception as error:
                raise explained(self._field, self._address, error) from error

        again(attempt, self._address)

    def read(self, name: str) -> bytes | None:
        """A small file; None when it is not there."""
        from pyarrow.fs import FileType

        path = f"{self._root}/{name}"
        if self._client.get_file_info(path).type != FileType.File:
            return None
        with self._client.open_input_file(path) as stream:
            return bytes(stream.read())

    def copy(self, directory: Path, below: str, names: Sequence[str], last: str) -> None:
        """These files of the directory to `below` in the store, then the one that makes it complete. Raises FileNotFoundError when the directory is
        gone, Stopped, and OSError when the store does not take them."""
        if self.read(f"{below}/{last}") is not None:
            self._client.delete_file(f"{self._root}/{below}/{last}")
        with ThreadPoolExecutor(FILES_AT_A_TIME) as threads:
            for _ in threads.map(lambda name: self._copy(directory, below, name), [n for n in names if n != last]):
                pass
        self._copy(directory, below, last)

    def _copy(self, directory: Path, below: str, name: str) -> None:
        again(lambda: self._copy_once(directory / name, f"{below}/{name}"), name, final=(Stopped, FileNotFoundError))

    def _copy_once(self, file: Path, name: str) -> None:
        with file.open("rb") as source, self._opened(name) as target:
            while block := source.read(BLOCK_BYTES):
                if self._stopped.is_set():
                    raise Stopped
                target.write(block)
                with self._counting:
                    self.moved += len(block)
            size = source.tell()
        there = self._client.get_file_info(f"{self._root}/{name}").size
        if there != size:
            raise OSError(f"{self._address}/{name} has {there} of {size} bytes")

    def _write(self, name: str, content: bytes) -> None:
        with self._opened(name) as stream:
            stream.write(content)

    def _opened(self, name: str) -> Any:
        path = f"{self._root}/{name}"
        if self._local:
            self._client.create_dir(path.rpartition("/")[0], recursive=True)
        return self._client.open_output_stream(path)
