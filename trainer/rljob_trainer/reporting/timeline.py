"""What each process of an attempt does when, as the driver sees it: by one clock, so that spans of several processes can be compared."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

PAUSE = 50_000_000
"""Nanoseconds. A process that does the same again after less has not paused."""
MOST_SPANS = 5000
"""Of a step; of more the oldest are dropped."""


class ProcessSpan(NamedTuple):
    """Times are nanoseconds since 1970."""

    process: str
    name: str
    began: int
    ended: int


class Interval(NamedTuple):
    """From the end of a step to that of the next."""

    began: int
    ended: int
    spans: list[ProcessSpan]
    """Those that ended in it, by their begin."""


@dataclass(slots=True)
class _Working:
    """Of one kind, in one process."""

    began: int
    count: int = 0
    """Under way; 0: it has ended."""
    ended: int = 0


class Timeline:
    """The spans of one attempt. Used by tasks of one event loop."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()
        self._done: deque[ProcessSpan] = deque(maxlen=MOST_SPANS)
        self._work: dict[tuple[str, str], _Working] = {}
        self._doing: dict[str, tuple[str, int]] = {}
        self._cut = self._now()

    @contextmanager
    def working(self, process: str, name: str) -> Iterator[None]:
        """A process does this, perhaps several times at once: one span until it has done all."""
        key, now = (process, name), self._now()
        work = self._work.get(key)
        if work is None or (not work.count and now - work.ended > PAUSE):
            self._end(key)
            work = self._work[key] = _Working(now)
        work.count += 1
        try:
            yield
        finally:
            work.count -= 1
            work.ended = self._now()

    def turn(self, process: str, name: str) -> None:
        """A process that does one thing at a time does this from now on; empty: nothing."""
        doing, now = self._doing.pop(process, None), self._now()
        if doing and doing[0] == name:
            self._doing[process] = doing
            return
        if doing:
            self._done.append(ProcessSpan(process, *doing, now))
        if name:
            self._doing[process] = name, now

    def cut(self) -> Interval:
        """The step is done: what has ended since the one before."""
        for key in [key for key, work in self._work.items() if not work.count]:
            self._end(key)
        spans = sorted(self._done, key=lambda span: span.began)
        self._done.clear()
        began, self._cut = self._cut, self._now()
        return Interval(began, self._cut, spans)

    def _end(self, key: tuple[str, str]) -> None:
        work = self._work.pop(key, None)
        if work:
            self._done.append(ProcessSpan(*key, work.began, work.ended))

    def _now(self) -> int:
        return time.monotonic_ns() + self._offset
