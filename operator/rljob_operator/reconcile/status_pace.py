"""When a status is written that can wait: one in which only progress, counts and sentences have changed. Of one job such statuses are rare, and
those of all jobs together leave the API server time for what cannot wait.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rljob_api.status import JobStatus
from rljob_operator.kube.api import Key
from rljob_operator.policies.describe import can_wait, is_display

DISPLAY_SPACING, DISPLAY_SHARE = 5.0, 0.01
"""For a status in which only counts and sentences have changed, which happens often, since pods become ready one by one: the seconds between two
writes of one job, at least, and the share of the time that such writes may take. The longer the API server takes for one, the rarer they are."""
SHARE = 0.5
"""Of the time, which the writes of all jobs that can wait may take. There is one of them at a time."""
LEAST = 0.05
"""Seconds until the next turn of one that finds another one being written, at least; or else as many as that one has taken already."""
WEIGHT = 0.25
"""Of the last write in the mean of what they take."""


class StatusPace:
    """`longest_spacing`: seconds between two statuses of one job in which only counts and sentences have changed, at most; `timer`: seconds of a
    clock that nobody sets. A job whose status has to wait gets a turn behind those before it, so that jobs which report at the same moment are
    written one after another. Turns are as far apart as writes have been long: who finds that the one before takes longer gets another one."""

    def __init__(self, longest_spacing: float, timer: Callable[[], float]) -> None:
        self._longest_spacing, self._timer = longest_spacing, timer
        self._display: dict[Key, float] = {}
        """When the counts and sentences of a job may be written next."""
        self._turns: dict[Key, float] = {}
        """When the turn of each job is whose status waits."""
        self._next_turn, self._takes = 0.0, 0.0
        """When the turn behind all of these is, and the seconds that a write takes."""
        self._in_flight_since: float | None = None
        """When the write of one of these began that has not ended."""
        self._free_at = 0.0
        """When the next may be written after the last one."""

    def wait(self, key: Key, old: JobStatus, new: JobStatus) -> float:
        """Seconds until it may be seen again whether `new` may be written over `old`; 0: it may."""
        if not can_wait(old, new):
            return 0.0
        now = self._timer()
        display = self._display.get(key, 0.0) - now if is_display(old, new) else 0.0
        if display > 0.0:
            return display
        turn = self._turns[key] if key in self._turns else self._turn(now)
        if turn <= now and self._in_flight_since is not None:
            turn = self._turn(now + max(LEAST, now - self._in_flight_since))
        elif turn <= now < self._free_at:
            turn = self._turn(self._free_at)
        self._turns[key] = turn
        return max(0.0, turn - now)

    def _turn(self, earliest: float) -> float:
        """The next turn that nobody has."""
        turn = max(earliest, self._next_turn)
        self._next_turn = turn + self._takes / SHARE
        return turn

    @contextmanager
    def writing(self, key: Key) -> Iterator[None]:
        """Inside, a status of the job is written."""
        began = self._timer()
        turn = self._turns.pop(key, math.inf)
        has_turn = turn <= began and self._in_flight_since is None  # else the status cannot wait
        if has_turn:
            self._in_flight_since = began
        try:
            yield
            spacing = max(DISPLAY_SPACING, (self._timer() - began) / DISPLAY_SHARE)
            self._display[key] = began + min(spacing, self._longest_spacing)
        finally:
            if has_turn:
                takes = self._timer() - began
                self._in_flight_since = None
                self._takes += WEIGHT * (takes - self._takes)
                self._free_at = began + takes / SHARE

    def forget(self, key: Key) -> None:
        for by_job in (self._display, self._turns):
            by_job.pop(key, None)
