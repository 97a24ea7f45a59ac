"""The one placement worker: jobs have their turn one after the other, until their seats are in status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rljob_api.placement.cluster import Cluster
from rljob_operator.placement.asked import Asked, View, asked
from rljob_operator.placement.board import Board
from rljob_operator.placement.turn import Verdict, take_turns
from rljob_operator.snapshot import Snapshot
from rljob_operator.stores import Stores


class Placer:
    """Remembers nothing but refusals, which stand while the cluster is as it was: many jobs that wait are not planned again and again."""

    def __init__(self, stores: Stores) -> None:
        self._board = Board(stores)
        self._lock = asyncio.Lock()
        self._cluster = Cluster(())
        self._refused: dict[str, Verdict] = {}

    @asynccontextmanager
    async def turn(self, s: Snapshot) -> AsyncIterator[Verdict | None]:
        """None, and nobody waits, if the job asks for nothing."""
        if self._asks(s) is None:
            yield None
            return
        async with self._lock:
            yield await self._verdict(s)

    def _asks(self, s: Snapshot) -> Asked | None:
        spec = s.spec_of(s.status.attempt)
        if spec is None:
            return None
        return asked(View(job=s.job, spec=spec, status=s.status, pods=s.pods, now=s.now), self._board.nodes())

    async def _verdict(self, s: Snapshot) -> Verdict | None:
        mine = self._asks(s)
        if mine is None:
            return None
        cluster = self._board.cluster()
        if cluster != self._cluster:
            self._cluster, self._refused = cluster, {}
        if standing := self._standing(mine):
            return standing
        others = self._board.waiting(s.now, (s.job.namespace, s.job.name))
        rivals = [a for a in others if not self._standing(a)]
        verdicts = await asyncio.to_thread(take_turns, cluster, rivals, mine)
        self._refused |= {v.asked.job.uid: v for v in verdicts if v.plan.problem}
        return verdicts[-1]

    def _standing(self, asked: Asked) -> Verdict | None:
        """A refusal of the same wish."""
        found = self._refused.get(asked.job.uid)
        return found if found and found.asked == asked else None
