"""What the first process of every pod does: it runs until SIGTERM, follows the operator's control, and reports."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rljob_api.protocol import Control, Report
from rljob_trainer.pod.channel import Channel, ProtocolMismatch

REPORT_SECONDS = 15.0
"""Longest time between two reports of a pod."""

log = logging.getLogger(__name__)


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
    channel: Channel, state: Callable[[], Report], news: asyncio.Event, reported: Callable[[], None] = lambda: None
) -> None:
    """Report on every change, which sets `news`, and at least every REPORT_SECONDS. `reported` is called after each report."""
    while True:
        news.clear()
        await channel.report(state())
        reported()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), REPORT_SECONDS)
