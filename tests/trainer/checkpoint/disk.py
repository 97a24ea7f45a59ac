"""What a power cut leaves of a directory: the files and names that were synced."""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

Names = dict[str, tuple[int, bool]]
"""Of a directory: the inode behind each, and whether it is a directory."""


class Disk:
    """Holds what lies below `top` as of its last fsync: bytes of files, names of directories."""

    def __init__(self, top: Path):
        self._top, self._lock = top, threading.RLock()
        self._files: dict[int, bytes] = {}
        self._directories: dict[int, Names] = {}
        self._open: list[int] = []
        """A handle of what was synced, so that no inode number is used twice."""

    @contextmanager
    def watched(self, changed: Callable[[], None]) -> Iterator[None]:
        """fsync writes to this disk alone; `changed` is called before each, and after each rename. Both in this process and below
        `top`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._noting(changed))
            for name in ("rename", "replace"):
                patch.setattr(os, name, self._then(changed, getattr(os, name)))
            yield

    def found(self, every_name: bool) -> dict[str, bytes | None]:
        """What is below `top` after a power cut now, by path; None: a directory. `every_name`: as if names reached the disk at once, and bytes alone
        had to be synced."""
        with self._lock:
            return dict(self._below(self._top.stat().st_ino, self._top, every_name))

    def _below(self, inode: int, directory: Path, every_name: bool) -> Iterator[tuple[str, bytes | None]]:
        names = _names(directory) if every_name else self._directories.get(inode, {})
        for name, (child, is_directory) in names.items():
            path = directory / name
            yield str(path.relative_to(self._top)), None if is_directory else self._files.get(child, b"")
            if is_directory:
                yield from self._below(child, path, every_name)

    def _noting(self, changed: Callable[[], None]) -> Callable[[int], None]:
        def fsync(handle: int) -> None:
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if not path.is_relative_to(self._top):
                return
            with self._lock:
                changed()
                self._open.append(os.dup(handle))
                found = os.fstat(handle)
                if stat.S_ISDIR(found.st_mode):
                    self._directories[found.st_ino] = _names(path)
                else:
                    self._files[found.st_ino] = path.read_bytes()

        return fsync

    def _then(self, changed: Callable[[], None], rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any) -> None:
            with self._lock:
                rename(source, target)
                if Path(target).is_relative_to(self._top):
                    changed()

        return renamed


class Cuts:
    """Power cuts of a disk, each followed by a look at what is left."""

    def __init__(self, work: Path, look: Callable[[Path, Any, str], None]):
        """`look`: gets a directory with what is left, `committed`, and when that was."""
        self.top, self._found, self._look = work / "disk", work / "found", look
        self.top.mkdir()
        self.disk = Disk(self.top)
        self.number = 0
        self.committed: Any = None
        """What has to be left."""
        self._last: dict[bool, Any] = {}

    def cut(self) -> None:
        """Look at what is left, unless nothing but scratch has changed."""
        for every_name in (True, False):
            left = {p: content for p, content in self.disk.found(every_name).items() if ".tmp" not in p}
            if (left, self.committed) != self._last.get(every_name):
                self._last[every_name] = left, self.committed
                _write(left, self._found)
                self._look(self._found, self.committed, f"cut {self.number}, every name: {every_name}")
                rmtree(self._found)
                self.number += 1


def _write(files: dict[str, bytes | None], target: Path) -> None:
    target.mkdir()
    for path, content in files.items():
        if content is None:
            (target / path).mkdir()
        else:
            (target / path).write_bytes(content)


def _names(directory: Path) -> Names:
    with os.scandir(directory) as entries:
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
