"""Waiting for something without a file descriptor: a key in a store, a collective, a CUDA stream."""

import time
from collections.abc import Callable

SHORTEST_SECONDS, LONGEST_SECONDS = 0.0002, 0.002
GROWTH = 1.1
"""Growth of the pause between two polls, to at most a tenth of the time already waited: short waits end promptly, and long waits of many threads
leave the GIL to others."""


def wait_until(done: Callable[[], bool], given_up: Callable[[], bool] = lambda: False) -> bool:
    """Poll until `done` or `given_up`, every 0.2 ms at first and every 2 ms in the end. Returns whether it is done, which is checked once more after
    `given_up`."""
    pause = SHORTEST_SECONDS
    while not done():
        if given_up():
            return done()
        time.sleep(pause)
        pause = min(LONGEST_SECONDS, GROWTH * pause)
    return True
