"""A work queue of job keys, as client-go's: a key that is added several times waits once, and is never worked on twice at a time.

add_after(key)  ->  due[key] = the earliest time asked for  ->  one task per due key, at most `workers` at once
                    waits for: the key's own worker, its cool-down, a free worker
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

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
        self._is_open = False
        self._changed = asyncio.Event()
        self._clear()

    def _clear(self) -> None:
        self._due: dict[Key, float] = {}
        self._running: set[Key] = set()
        self._ready_at: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._free = self._workers
        self._started_at = math.inf

    @contextmanager
    def open(self) -> Iterator[None]:
        """Inside, keys are taken. Outside, none is kept: who opens the queue adds all of them."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False
            self._clear()

    def add_after(self, key: Key, seconds: float) -> None:
        if self._is_open:
            due = asyncio.get_running_loop().time() + seconds
            self._due[key] = min(due, self._due.get(key, due))
            self._changed.set()

    def lag(self) -> float:
        """Seconds that the most overdue key has been waiting for a worker: how far the operator is behind. 0 before `run`."""
        now = asyncio.get_running_loop().time()
        return max((0.0, *(now - max(self._at(k), self._started_at) for k in self._due)))

    async def run(self, reconcile: Reconcile) -> None:
        """Runs until cancelled, which also cancels running reconciles."""
        self._started_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                for key in self._startable():
                    self._start(group, reconcile, key)
                await self._wait()

    def _at(self, key: Key) -> float:
        """When the key may start, on the loop's clock."""
        return max(self._due[key], self._ready_at.get(key, 0.0))

    def _startable(self) -> list[Key]:
        now = asyncio.get_running_loop().time()
        keys = [k for k in self._due if k not in self._running and self._at(k) <= now]
        return sorted(keys, key=self._at)[: self._free]

    def _start(self, group: asyncio.TaskGroup, reconcile: Reconcile, key: Key) -> None:
        del self._due[key]
        self._running.add(key)
        self._free -= 1
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
            self._free += 1
            self._cool_down(key, min(max(COOL_DOWN, clock() - started), LONGEST_COOL_DOWN))
            self._changed.set()
        if after is not None:
            self.add_after(key, after)

    def _cool_down(self, key: Key, cool_down: float) -> None:
        loop = asyncio.get_running_loop()
        self._ready_at[key] = until = loop.time() + cool_down
        loop.call_at(until, self._cooled_down, key, until)

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

    async def _wait(self) -> None:
        """Waits until something is added or finished, or the next key becomes due."""
        waiting = [self._at(k) for k in self._due if k not in self._running] if self._free else []
        delay = max(0.0, min(waiting) - asyncio.get_running_loop().time()) if waiting else None
        try:
            async with asyncio.timeout(delay):
                await self._changed.wait()
        except TimeoutError:
            return
