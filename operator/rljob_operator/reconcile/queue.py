"""A work queue of job keys, as client-go's: a key that is added several times waits once, and is never worked on twice at a time.

add_after(key)  ->  a timer until the earliest time asked for  ->  in line, first come, first served  ->  one task per key, at most `workers` at once
                    (its cool-down included)

Nothing looks at all keys: what an event or a reconcile costs does not depend on how many others wait.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from rljob_operator.kube.api import ApiError, Conflict, Key

log = logging.getLogger(__name__)

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Returns the seconds after which the key is due again; None: only when it is added again."""

COOL_DOWN, LONGEST_COOL_DOWN = 0.25, 0.5
"""Seconds between two reconciles of one key, at least and at most: in between, as long as the last one took. So a burst of events becomes one
reconcile, and more so under load."""
FIRST_RETRY, LONGEST_RETRY = 0.5, 60.0
"""Seconds between a failed reconcile and the next one: doubles with each failure in a row."""
MOST_DOUBLINGS = 30
"""More would change nothing, and 2.0 ** 1024 is no float: a key that fails for a day would end the process."""
CONFLICTS = 5
"""Conflicts in a row after which the key is retried at once; further ones count as failures."""


class WorkQueue:
    """Runs reconciles as tasks of one event loop."""

    def __init__(self, workers: int = 16) -> None:
        self._workers = workers
        self._open = False
        self._changed = asyncio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._clear()

    def _clear(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due: dict[Key, float] = {}
        """When each key that waits may start, on the loop's clock; of one that is worked on, as if it had no cool-down."""
        self._line = deque[Key]()
        """Keys that may start, the most overdue first."""
        self._running: set[Key] = set()
        self._ready_at: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._started_at = math.inf

    @contextmanager
    def open(self) -> Iterator[None]:
        """Inside, keys are taken. Outside, none is kept: who opens the queue adds all of them."""
        self._open = True
        try:
            yield
        finally:
            self._open = False
            self._clear()

    def is_open(self) -> bool:
        return self._open

    def add_after(self, key: Key, seconds: float) -> None:
        if not self._open:
            return
        due = max(asyncio.get_running_loop().time() + seconds, self._ready_at.get(key, 0.0))
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            if key not in self._running:
                self._wait(key)

    def lag(self) -> float:
        """Seconds that the most overdue key has been waiting for a worker: how far the operator is behind. 0 before `run`."""
        now = asyncio.get_running_loop().time()
        again = (key for key in self._running if key in self._due)
        return max((0.0, *(now - max(self._due[key], self._started_at) for key in (*islice(self._line, 1), *again))))

    async def run(self, reconcile: Reconcile) -> None:
        """Runs until cancelled, which also cancels running reconciles."""
        self._started_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            while True:
                while self._line and len(self._running) < self._workers:
                    self._start(group, reconcile, self._line.popleft())
                self._changed.clear()
                await self._changed.wait()

    def _wait(self, key: Key) -> None:
        """Sets the key's timer."""
        earlier = self._timers.pop(key, None)
        if earlier:
            earlier.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(self._due[key], self._line_up, key)

    def _line_up(self, key: Key) -> None:
        del self._timers[key]
        self._line.append(key)
        self._changed.set()

    def _start(self, group: asyncio.TaskGroup, reconcile: Reconcile, key: Key) -> None:
        del self._due[key]
        self._running.add(key)
        group.create_task(self._run_one(reconcile, key))

    async def _run_one(self, reconcile: Reconcile, key: Key) -> None:
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            after = await reconcile(key)
            self._failures.pop(key, None)
        except Exception as error:
            after = self._failed(key, error)
        finally:
            self._running.discard(key)
            self._cool_down(key, min(max(COOL_DOWN, clock() - started), LONGEST_COOL_DOWN))
            self._changed.set()
        if after is not None:
            self.add_after(key, after)

    def _cool_down(self, key: Key, cool_down: float) -> None:
        """Nobody starts the key for so many seconds, also if it has been added meanwhile."""
        loop = asyncio.get_running_loop()
        self._ready_at[key] = until = loop.time() + cool_down
        loop.call_at(until, self._cooled_down, key, until)
        if key in self._due:
            self._due[key] = max(self._due[key], until)
            self._wait(key)

    def _cooled_down(self, key: Key, until: float) -> None:
        """Forgets the cool-down of a key, so that nothing is kept of jobs that are gone."""
        if self._ready_at.get(key) == until:
            del self._ready_at[key]

    def _failed(self, key: Key, error: Exception) -> float:
        """Seconds until the retry. A conflict means that something changed since it was read, and the next reconcile sees that: it is retried at
        once, and only counts as an error if it does not end."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        at_once = CONFLICTS if isinstance(error, Conflict) else 0
        if failures <= at_once:
            return 0.0
        after = min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(failures - at_once - 1, MOST_DOUBLINGS))
        known = isinstance(error, ApiError)
        log.error("%s/%s: %s; again in %.1f s", *key, error, after, exc_info=None if known else error)
        return after
