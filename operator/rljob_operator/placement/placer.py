"""The one placement worker: all jobs that ask are planned together, in their turn, and each fetches its seats when it has its pass."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import Assignment, SchedulingRequest
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.placement.asked import View, asked
from rljob_operator.placement.board import Board
from rljob_operator.placement.turn import has_grown, take_turns
from rljob_placement.cluster import Cluster


class Placer:
    """A *round* plans everybody who asks at that moment. Its verdicts stand while they are true, so that a crowd is planned once and not once for
    each of its members. What is remembered is lost without harm: seats are given by the status that is written in a turn.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._board = Board(cache)
        self._planning = asyncio.Lock()
        self._promised: dict[Key, Assignment] = {}
        """Seats of the round that nobody has fetched yet."""
        self._fetched: dict[Key, Assignment] = {}
        """Seats that are being written to status."""
        self._refused: dict[Key, Assignment] = {}
        """By the round: no seats, or not all that were asked for."""
        self._left = Cluster(())
        """What the round left free."""

    @asynccontextmanager
    async def turn(self, s: Snapshot) -> AsyncIterator[Assignment | None]:
        """Until the seats are in status. None, and nobody waits, if the job asks for nothing."""
        key = (s.job.namespace, s.job.name)
        mine = self._asks(s)
        if mine is None:
            self.forget(key)
            yield None
            return
        async with self._planning:
            verdict = self._standing(mine) or await self._round(mine, s.now)
            self._promised.pop(key, None)
            self._fetched[key] = verdict
        try:
            yield verdict
        finally:
            del self._fetched[key]

    def forget(self, job: Key) -> None:
        """It does not ask any more."""
        self._promised.pop(job, None)
        self._refused.pop(job, None)

    def _asks(self, s: Snapshot) -> SchedulingRequest | None:
        spec = s.spec_of(s.status.attempt)
        if spec is None or s.is_void(s.status.attempt):
            return None
        return asked(View(job=s.job, spec=spec, status=s.status, pods=s.pods, now=s.now), self._board.node)

    def _standing(self, mine: SchedulingRequest) -> Assignment | None:
        """The round's word on the same wish: seats that are free, or a refusal since when nothing became free."""
        if (found := self._promised.get(mine.job)) and found.asked == mine:
            return found if found.fits(self._free(self._fetched)) else None
        if (found := self._refused.get(mine.job)) and found.asked == mine:
            return None if has_grown(self._left, self._free(self._fetched | self._promised)) else found
        return None

    async def _round(self, mine: SchedulingRequest, now: float) -> Assignment:
        others = self._board.waiting(now, {mine.job, *self._fetched})
        free = self._free(self._fetched)
        verdicts, self._left = await asyncio.to_thread(take_turns, free, [mine, *others])
        self._promised = {v.asked.job: v for v in verdicts if not v.plan.problem}
        self._refused = {v.asked.job: v for v in verdicts if not v.complete}
        return next(v for v in verdicts if v.asked is mine)

    def _free(self, but: Mapping[Key, Assignment]) -> Cluster:
        """What is free in the cluster, but for these seats."""
        return self._board.cluster(verdict.taken() for verdict in but.values())
