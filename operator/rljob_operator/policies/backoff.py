"""How long the operator waits before it tries again: to start the gang, or a pod that its kubelet has failed."""

from rljob_operator.model.snapshot import Snapshot
from rljob_operator.times import is_ahead

LONGEST_BACKOFF = 600.0
"""Seconds to wait, at most."""
MOST_DOUBLINGS = 30
"""More would change nothing: two to the power of many failures is a number that takes long to compute."""


def backoff(first: int, number: int) -> float:
    """Seconds to wait after failure `number` in a row: `first`, doubled each time, up to LONGEST_BACKOFF."""
    return min(LONGEST_BACKOFF, first * 2 ** min(number - 1, MOST_DOUBLINGS))


def is_backing_off(start: float, now: float) -> bool:
    """Whether the back-off until `start` still lasts."""
    return is_ahead(start, LONGEST_BACKOFF, now)


def retry_at(s: Snapshot, pod: str) -> float:
    """When a pod of this name may start again after those that its kubelet has failed, in seconds since the epoch; 0: at once. Otherwise a node that
    admits no pod of the job, as one with a broken GPU, would get the next one within a second, for ever."""
    last = s.failed.get(pod)
    if last is None or not last.times:
        return 0.0
    until = last.at + backoff(s.lifecycle.backoff_seconds, last.times)
    return until if is_backing_off(until, s.now) else 0.0
