"""How many pods calls need: what the driver measures, and by which the operator decides how many there are (docs/agents.md)."""

import time
from collections import deque
from collections.abc import Callable

from rljob_api.protocol import WorkerLoad
from rljob_api.spec.processes import Autoscaling
from rljob_trainer.workers.places import PackedPlaces


class Peak:
    """The largest of the values of the last so many seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._began: float | None = None
        self._largest = deque[tuple[float, int]]()
        """With the time of each: those that no later one has reached."""

    def of(self, value: int) -> int:
        """The largest, this one included."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        while self._largest and self._largest[-1][1] <= value:
            self._largest.pop()
        self._largest.append((now, value))
        while self._largest[0][0] < now - self._seconds:
            self._largest.popleft()
        return self._largest[0][1]

    @property
    def is_whole(self) -> bool:
        """Whether there have been values for so long."""
        return self._began is not None and self._clock() - self._began >= self._seconds


class PodsNeeded[P]:
    """Measured by whoever asks, again and again."""

    def __init__(self, places: PackedPlaces[P], autoscaling: Autoscaling, clock: Callable[[], float] = time.monotonic):
        self._places = places
        self._peak = Peak(autoscaling.down_seconds, clock)

    def now(self) -> WorkerLoad:
        calls = self._places.waiting + self._places.running
        needed = self._peak.of(-(-calls // self._places.calls_of_pod))
        enough = max(needed, self._places.busy) if self._peak.is_whole else None
        return WorkerLoad(calls=calls, needed=needed, enough=enough)
