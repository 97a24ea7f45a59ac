"""The channel of one machine: a directory with `control.json` and one `<pod>-report.json` per process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control, Report
from rljob_trainer.launcher.channel import parse_control
from rljob_trainer.textfile import read_text, replace

POLL_SECONDS = 0.1


class FileChannel:
    """Whoever writes these files replaces them whole, so that a reader never sees half of one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def controls(self) -> AsyncIterator[Control]:
        seen = ""
        while True:
            text = read_text(self._directory / names.CONTROL_KEY)
            if text and text != seen:
                seen = text
                yield parse_control(text)
            await asyncio.sleep(POLL_SECONDS)

    async def report(self, report: Report) -> None:
        replace(self._directory / f"{names.report(report.pod)}.json", report.dump_json())
