"""Which requests for samples have an answer: for clients that ask about all requests of a queue at once, in place of each.

A queue is a sampler in one process of a client; the numbers of its requests begin at COPIES times that of the process. A client says with a cursor
which completions it has heard of. A cursor of a former gateway is none of ours: that gateway had requests of which nobody knows any more.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass, field

from rljob_trainer.gateway.registry import session_of

COPIES = 10**9
"""Numbers of one process of a client."""


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A request that has an answer, which is fetched by its name."""

    name: str
    failed: bool
    cursor: int
    """Larger than that of all earlier ones."""


@dataclass
class _Queue:
    completions: dict[str, CompletedRequest] = field(default_factory=dict)
    """By name; the oldest first."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    """Polls."""


class Completions:
    """Those of one gateway, that their clients have not heard of."""

    def __init__(self) -> None:
        self._first = self._last = time.time_ns() // 1000
        """Cursors: larger than all of former gateways."""
        self._queues = defaultdict[str, _Queue](_Queue)

    def add(self, name: str, failed: bool) -> None:
        self._last += 1
        queue = self._queues[queue_of(name)]
        queue.completions[name] = CompletedRequest(name, failed, self._last)
        queue.changed.set()

    def forget(self, name: str) -> None:
        """Its client has the answer, or does not want it any more."""
        queue = queue_of(name)
        if queue in self._queues:
            self._queues[queue].completions.pop(name, None)
            self._drop_unused(queue)

    def end(self, session: str) -> None:
        """A session has ended, and its queues with it."""
        self._queues = defaultdict(_Queue, {name: q for name, q in self._queues.items() if session_of(name) != session})

    def is_ours(self, cursor: int) -> bool:
        """Whether this gateway has given it to a client."""
        return self._first <= cursor <= self._last

    async def after(self, queue: str, cursor: int, seconds: float) -> tuple[list[CompletedRequest], int]:
        """What is complete, without what the cursor says that the client has heard of, and the cursor of all of it. Waits until there is something,
        for `seconds` at most."""
        known = self._queues[queue]
        heard = cursor if self.is_ours(cursor) else self._first
        known.completions = {name: done for name, done in known.completions.items() if done.cursor > heard}
        known.waiting += 1
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not known.completions:
                        known.changed.clear()
                        await known.changed.wait()
        finally:
            known.waiting -= 1
            self._drop_unused(queue)
        completed = list(known.completions.values())
        return completed, completed[-1].cursor if completed else heard

    def _drop_unused(self, queue: str) -> None:
        """Clients may ask for any queue. `queue`: one that may have ended meanwhile."""
        known = self._queues.get(queue)
        if known and not known.completions and not known.waiting:
            del self._queues[queue]


def queue_of(name: str) -> str:
    """The queue of a request, by the request's name: that of its sampler, and its number."""
    return queue_named(name.rpartition(":")[0], number_of(name) // COPIES)


def queue_named(sampler: str, copy: int) -> str:
    """`copy`: the number of the client's process."""
    return f"{sampler}:{copy}"


def number_of(name: str) -> int:
    """Of a request."""
    return int(name.rpartition(":")[2])
