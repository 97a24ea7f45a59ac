"""Times in status: RFC 3339 in UTC, whole seconds."""

import math
from datetime import UTC, datetime
from functools import lru_cache


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
