"""Follows control.json, which the launcher replaces when the operator has something to say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from rljob_api.protocol import Control

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
