"""How the first process of every pod hears the operator and answers, until SIGTERM: by ConfigMaps in a cluster, by files on one machine."""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from rljob_api import names
from rljob_api.callbacks import nothing
from rljob_api.protocol import Control, Report
from rljob_trainer.checkpoint.exports import with_model
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.textfile import read_text, replace
from rljob_trainer.wire.launcher_files import report_file

POLL_SECONDS = 0.1
REPORT_SECONDS = 15.0
"""Longest time between two reports of a pod."""
log = logging.getLogger(__name__)


class Channel(Protocol):
    """Outages are the channel's to sit out: neither method raises because nobody answers."""

    def controls(self) -> AsyncIterator[Control | None]:
        """The control as it is, once there is one, then every change; None when it was deleted or may not be read any more, as after the
        job's deletion. Raises ProtocolMismatch."""
        ...

    async def report(self, report: Report) -> None:
        """Returns when it was accepted."""
        ...


class ProtocolMismatch(ConfigurationError):
    """The operator speaks another protocol."""

    def __init__(self, theirs: object, image: str, attempt: int) -> None:
        rule = f"this image, {image or 'unnamed'}, speaks protocol {names.PROTOCOL} of the control, the operator protocol {theirs}"
        super().__init__("spec.image", image, rule, "use a trainer image and an operator image of the same release")
        self.theirs, self.attempt = theirs, attempt


def parse_control(text: str) -> Control:
    """Raises ProtocolMismatch before anything else of another version is believed."""
    raw = json.loads(text)
    if raw.get("protocol") != names.PROTOCOL:
        raise ProtocolMismatch(
            raw.get("protocol"), str(raw.get("spec", {}).get("image", "")), int(raw.get("attempt", 0))
        )
    return Control.model_validate(raw)


async def control_of(text: str) -> Control:
    """As `parse_control`, with the model that is meant where the spec names a run. Asks the job's volumes."""
    return await asyncio.to_thread(with_model, parse_control(text))


class FileChannel:
    """The channel of one machine: a directory with `control.json` and one `<pod>-report.json` per process, each replaced whole."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def controls(self) -> AsyncIterator[Control | None]:
        seen = ""
        while True:
            text = read_text(self._directory / names.CONTROL_KEY)
            if text != seen:
                seen = text
                yield await control_of(text) if text else None
            await asyncio.sleep(POLL_SECONDS)

    async def report(self, report: Report) -> None:
        replace(report_file(self._directory, report.pod), report.dump_json())


async def until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends, or SIGTERM cancels it."""
    running = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def keep_following(
    channel: Channel, act: Callable[[Control | None], Awaitable[None]], refuse: Callable[[ProtocolMismatch], None]
) -> None:
    """Act on the control, and on every change of it. `refuse` is called as long as the operator speaks another protocol."""
    while True:
        try:
            async for control in channel.controls():
                await act(control)
        except ProtocolMismatch as mismatch:
            log.error("%s", mismatch)
            refuse(mismatch)
            await asyncio.sleep(REPORT_SECONDS)


async def keep_reporting(
    channel: Channel, state: Callable[[], Report], news: asyncio.Event, reported: Callable[[], None] = nothing
) -> None:
    """Report on every change, which sets `news`, and at least every REPORT_SECONDS. `reported` is called after each report."""
    while True:
        news.clear()
        await channel.report(state())
        reported()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), REPORT_SECONDS)
