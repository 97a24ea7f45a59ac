"""The output of an attempt's processes. They write it to files on the job's volume, and a thread copies it to the launcher's own standard output.

So a process never blocks on a slow reader, and a volume that hangs does not stop the launcher's reports.
"""

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

POLL_SECONDS = 0.2
TAIL_BYTES = 16384


def tail(file: Path) -> str:
    """The end of a log; empty when there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


class Follower:
    """A context manager. Inside, complete lines that are appended to the files are copied to standard output."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._read = {file: file.stat().st_size if file.exists() else 0 for file in files}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Copy what has been written so far, unless the volume hangs."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _follow(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._pass_on()
        self._pass_on(last=True)

    def _pass_on(self, last: bool = False) -> None:
        for file, position in self._read.items():
            text = _after(file, position)
            whole = text if last else text[: text.rfind(b"\n") + 1]
            if whole:
                self._read[file] = position + len(whole)
                sys.stdout.buffer.write(whole)
                sys.stdout.buffer.flush()


def _after(file: Path, position: int) -> bytes:
    try:
        with file.open("rb") as log:
            log.seek(position)
            return log.read()
    except OSError:
        return b""
