"""What follows a task's end."""

import asyncio
from collections.abc import Callable
from typing import Any


def when_done(task: asyncio.Future[Any], call: Callable[[], object]) -> None:
    """Have `call` called once the task has ended, in whatever way."""

    def ended(_: asyncio.Future[Any]) -> None:
        call()

    task.add_done_callback(ended)
