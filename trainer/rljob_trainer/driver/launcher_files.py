"""The files that launcher and driver leave each other: control.json, which the launcher replaces when the operator has something to say, and
progress.json, rank 0's account for the launcher's report."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rljob_api.protocol import Control, Progress

POLL_SECONDS = 0.2


def read_control(directory: Path) -> Control:
    """The control of the attempt whose directory this is."""
    return Control.model_validate_json((directory / "control.json").read_text())


async def follow_control(directory: Path) -> AsyncIterator[Control]:
    """The control as it is, then every change."""
    seen = (-1, -1)
    while True:
        file = (directory / "control.json").stat()
        changed = file.st_mtime_ns, file.st_ino  # two files may be of the same tick of the clock
        if changed != seen:
            seen = changed
            yield read_control(directory)
        await asyncio.sleep(POLL_SECONDS)


WRITE_SECONDS = 0.5


class ProgressFile:
    """The account and its file."""

    def __init__(self, file: Path):
        self._file = file
        self.progress = Progress()
        self._written: Progress | None = None

    def update(self, **fields: Any) -> None:
        """Replace fields. Not a heartbeat: that a rollout came and went, or that somebody waits, is no progress."""
        self.progress = self.progress.model_copy(update=fields)

    def heartbeat(self, count: int = 1) -> None:
        """Something moved: a sample, a micro-batch, a bucket, a step."""
        self.progress = self.progress.model_copy(update={"heartbeat": self.progress.heartbeat + count})

    async def run(self) -> None:
        """Write whatever changes, until cancelled."""
        while True:
            self.flush()
            await asyncio.sleep(WRITE_SECONDS)

    def flush(self) -> None:
        """Atomically."""
        if self.progress is self._written:
            return
        scratch = self._file.with_suffix(".tmp")
        scratch.write_text(self.progress.dump_json())
        scratch.replace(self._file)
        self._written = self.progress
