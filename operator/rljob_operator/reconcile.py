"""One pass over one job."""

import logging
import time
from collections.abc import Callable

from rljob_operator import apply
from rljob_operator.api import Api, NotFound
from rljob_operator.decide import decide
from rljob_operator.memory import Memory
from rljob_operator.observe import observe
from rljob_operator.queue import Key
from rljob_operator.render import render

log = logging.getLogger(__name__)

CONFLICT_RETRY = 10.0
"""Seconds until the next look at a name that belongs to somebody else."""


class Reconciler:
    """observe -> decide -> apply. Errors propagate to the queue, which tries again later."""

    def __init__(self, api: Api, progress_interval: float, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._interval = progress_interval
        self._clock = clock
        self._memory = Memory()

    async def __call__(self, key: Key) -> float | None:
        """Seconds until the job wants another pass, if any."""
        namespace, name = key
        try:
            job = await self._api.get("RLJob", namespace, name)
        except NotFound:
            self._memory.forget(key)
            return None
        if "deletionTimestamp" in job["metadata"]:
            return None  # owner references take the children along
        s = await observe(self._api, job, self._memory, self._clock(), self._interval)
        decision = decide(s)
        await apply.write_status(self._api, job, s.status, decision.status)
        conflicts = await apply.write_children(self._api, s, render(s, decision.status))
        await apply.delete_pods(self._api, namespace, decision.delete)
        await apply.post_events(self._api, s.job, decision.events, s.now)
        self._memory.conflicts[key] = conflicts
        if conflicts != s.conflicts:
            return 0.0
        waits = [t for t in (decision.requeue_after, CONFLICT_RETRY if conflicts else None) if t is not None]
        return min(waits, default=None)
