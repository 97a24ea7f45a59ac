"""How a thread waits for what has no descriptor: an entry of a store, a collective, a stream of a GPU."""

import time
from collections.abc import Callable

SHORTEST_SECONDS, LONGEST_SECONDS = 0.0002, 0.002
GROWTH = 1.1
"""A pause is at most a tenth of the time already waited: what is ready soon is found soon, and long waits of many threads leave the GIL to others."""


def wait_until(done: Callable[[], bool], given_up: Callable[[], bool] = lambda: False) -> bool:
    """Return when `done`, which is asked every 0.2 ms at first and every 2 ms in the end, or when `given_up`.

    Whether it is done then: it may have become so just before it was given up.
    """
    pause = SHORTEST_SECONDS
    while not done():
        if given_up():
            return done()
        time.sleep(pause)
        pause = min(LONGEST_SECONDS, GROWTH * pause)
    return True
