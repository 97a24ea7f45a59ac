"""The files between launcher and driver: control.json, which the launcher replaces with each control message of the operator, and progress.json,
which the driver writes and the launcher reports. On one machine reports are files, too.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Control, PhaseOfRun, Progress, WorkerLoad

POLL_SECONDS = 0.2


def read_control(directory: Path) -> Control:
    """The control message in an attempt's directory."""
    return Control.model_validate_json((directory / "control.json").read_text())


def report_file(directory: Path, pod: str) -> Path:
    """A pod's report."""
    return directory / f"{names.report(pod)}.json"


async def follow_control(directory: Path) -> AsyncIterator[Control]:
    """Yields the current control message, then every new one."""
    seen = (-1, -1)
    while True:
        file = (directory / "control.json").stat()
        changed = file.st_mtime_ns, file.st_ino  # the inode, too: two files may have the same time
        if changed != seen:
            seen = changed
            yield read_control(directory)
        await asyncio.sleep(POLL_SECONDS)


WRITE_SECONDS = 0.5
QUIET_SECONDS = 10.0
EXPLAINED = ("fetching", "loading", "waiting")
"""Phases of which other fields say what is waited for."""


class ProgressFile:
    """The progress of an attempt, and its file."""

    def __init__(self, file: Path):
        self._file = file
        self.progress = Progress()
        self.awaited: Callable[[], str] = str
        """What is waited for, called when there was no heartbeat for QUIET_SECONDS."""
        self.load: Callable[[], dict[str, WorkerLoad]] = dict
        """What the numbers of worker pods follow, called before each write."""
        self._written: Progress | None = None
        self._moved = self._entered = time.monotonic()

    def update(self, **fields: Any) -> None:
        """Replace fields. This is not a heartbeat: a rollout that comes or goes, or a change of phase, is not progress."""
        if fields.get("phase", self.progress.phase) != self.progress.phase:
            fields["spent"] = self._spent()
        self.progress = self.progress.model_copy(update=fields)

    def _spent(self) -> dict[PhaseOfRun, float]:
        """Seconds in each phase until now, when the present one ends."""
        left, self._entered = self._entered, time.monotonic()
        phase, known = self.progress.phase, self.progress.spent
        return known | {phase: known.get(phase, 0.0) + self._entered - left}

    def heartbeat(self, count: int = 1) -> None:
        """Progress was made: a sample, a micro-batch, a bucket, a step."""
        self._moved = time.monotonic()
        self.update(heartbeat=self.progress.heartbeat + count)

    async def run(self) -> None:
        """Write every change, until cancelled."""
        while True:
            self._say_what_is_awaited()
            self._measure()
            self.flush()
            await asyncio.sleep(WRITE_SECONDS)

    def _say_what_is_awaited(self) -> None:
        named = self.progress.phase not in EXPLAINED and time.monotonic() > self._moved + QUIET_SECONDS
        awaiting = self.awaited() if named else ""
        if awaiting != self.progress.awaiting:
            self.update(awaiting=awaiting)

    def _measure(self) -> None:
        load = self.load()
        if load != self.progress.workers:
            self.update(workers=load)

    def flush(self) -> None:
        """Write the progress now, atomically."""
        if self.progress is self._written:
            return
        scratch = self._file.with_suffix(".tmp")
        scratch.write_text(self.progress.dump_json())
        scratch.replace(self._file)
        self._written = self.progress
