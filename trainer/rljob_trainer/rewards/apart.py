"""Threads for what takes long for a long response, and must not hold the driver's event loop: its text, and the rules that read it.

There are few: threads that wait for the interpreter delay the loop, each by its switch interval of 5 ms.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_THREADS = ThreadPoolExecutor(2, "responses")


async def apart[**P, R](function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """What the function returns in a thread. Raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, lambda: function(*arguments, **named))
