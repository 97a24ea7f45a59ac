"""Waiting for something without a file descriptor: a key in a store, a collective, a CUDA stream."""

import time
from collections.abc import Callable

from rljob_api.callbacks import never

SHORTEST_SECONDS, LONGEST_SECONDS = 0.0002, 0.002
GROWTH = 1.1
"""Growth of the pause between two polls, to at most a tenth of the time already waited: short waits end promptly, and long waits of many threads
leave the GIL to others."""


def now_and_then(seconds: float, check: Callable[[], bool], at_once: bool = True) -> Callable[[], bool]:
    """A function that returns False, but every so often what `check` returns. `at_once`: also at its first call."""
    asked = 0.0 if at_once else time.monotonic()

    def ask() -> bool:
        nonlocal asked
        if time.monotonic() < asked + seconds:
            return False
        asked = time.monotonic()
        return check()

    return ask


class CalledOffError(RuntimeError):
    """Others no longer take part in what was waited for."""


def wait_until(
    done: Callable[[], bool], given_up: Callable[[], bool] = never, longest: float = LONGEST_SECONDS
) -> bool:
    """Poll until `done` or `given_up`, every 0.2 ms at first and every `longest` seconds in the end. Returns whether it is done, which is checked
    once more after `given_up`."""
    pause = SHORTEST_SECONDS
    while not done():
        if given_up():
            return done()
        time.sleep(pause)
        pause = min(longest, GROWTH * pause)
    return True
