"""Calls that may block or never return, each in a thread of its own: one that hangs holds neither the event loop nor a thread of others."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

MOST_HUNG = 16
"""Threads of calls that were given up and still run. With more the process ends, and a new one takes its place."""
GRACE_SECONDS = 10.0
"""Time for a call to end after it was given up. One that takes longer hangs."""

_hung = set[threading.Thread]()


async def in_thread[T](function: Callable[..., T], *arguments: Any) -> T:
    """What the function returns or raises. Cancelled, its thread is left to itself."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        returned: T | None = None
        error: BaseException | None = None
        try:
            returned = function(*arguments)
        except StopIteration as stop:  # no future takes it
            error = RuntimeError(f"StopIteration: {stop.value}")
        except BaseException as raised:
            error = raised
        loop.call_soon_threadsafe(settle, returned, error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return await answer
    except asyncio.CancelledError:
        _left(thread)
        raise


def in_background(function: Callable[[], object]) -> None:
    """Nobody waits for it, and what it raises is lost: the end of what has failed already. Call it in an event loop."""
    thread = threading.Thread(target=_quietly, args=(function,), daemon=True)
    thread.start()
    _left(thread)


def _quietly(function: Callable[[], object]) -> None:
    with contextlib.suppress(BaseException):
        function()


def _left(thread: threading.Thread) -> None:
    """It is counted if it does not end soon."""
    asyncio.get_running_loop().call_later(GRACE_SECONDS, _count, thread)


def _count(thread: threading.Thread) -> None:
    _hung.add(thread)
    _hung.intersection_update({t for t in _hung if t.is_alive()})
    if len(_hung) > MOST_HUNG:
        print(f"{len(_hung)} calls of the environment hang: this process ends", file=sys.stderr, flush=True)
        os._exit(1)
