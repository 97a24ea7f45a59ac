"""Times in status: RFC 3339 in UTC, whole seconds. And how long the operator waits before it tries again: to start a gang, a server, or a pod that
its kubelet has failed."""

import math
from datetime import UTC, datetime
from functools import lru_cache

LONGEST_BACKOFF = 600.0
"""Seconds to wait, at most."""
MOST_DOUBLINGS = 30
"""More would change nothing: two to the power of many failures is a number that takes long to compute."""


def stamp(seconds: float) -> str:
    """A time from seconds since the epoch. Rounded up, so that no wait becomes shorter than was decided."""
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=16_384)
def seconds(text: str) -> float:
    """Seconds since the epoch; 0 for an empty text. Remembered, since the same times are read in every event of a node and every reconcile."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def is_past(since: float, now: float) -> bool:
    """Whether a time was set and has come. One that lies ahead was written before the clock was set back, and does not count."""
    return 0.0 < since <= now + 1.0


def is_ahead(until: float, longest: float, now: float) -> bool:
    """Whether a time that was set at most `longest` seconds ahead has yet to come. One that lies further ahead than any can (`stamp` rounds up by
    less than a second) was written before the clock was set back, and does not count."""
    return now < until <= now + longest + 1.0


def backoff(first: int, number: int) -> float:
    """Seconds to wait after failure `number` in a row: `first`, doubled each time, up to LONGEST_BACKOFF."""
    return min(LONGEST_BACKOFF, first * 2 ** min(number - 1, MOST_DOUBLINGS))


def is_backing_off(start: float, now: float) -> bool:
    """Whether the back-off until `start` still lasts."""
    return is_ahead(start, LONGEST_BACKOFF, now)
