"""A cluster in memory and the operator that serves it, which does only what events and timers ask for, as behind the real queue."""

import math
from dataclasses import dataclass, field
from random import Random

from rljob_api import names
from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_operator.cache.cluster import CAPACITY, ClusterCache
from rljob_operator.kube.api import ApiError, Conflict, Key, NotFound
from rljob_operator.reconcile.queue import FIRST_RETRY
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch.events import EventHandlers
from simulator.cluster import Crash, FakeCluster
from simulator.feed import PROMPT, Faults, Feed

NAMESPACE = "research"


@dataclass(kw_only=True)
class Site:
    """Whoever inherits says what else happens in a turn. What a pass forgets to ask for never happens."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    faults: Faults = PROMPT
    random: Random = field(default_factory=lambda: Random(0))
    policy: JobPolicy = DEFAULT_POLICY
    now: float = 1_000_000.0
    """The clock on the wall, which may jump."""
    elapsed: float = 0.0
    """Seconds by the clock of the queue, which does not."""
    progress_interval: float = 0.0
    due: dict[Key, float] = field(default_factory=dict)
    """When a key may be worked on, by the clock of the queue."""
    crashes: int = 0

    def __post_init__(self) -> None:
        self.restart_operator()

    def restart_operator(self) -> None:
        """Its cache begins with a list, and every job is reconciled once."""
        cache = ClusterCache(lambda: self.now, self.policy)
        self.cluster.revive()
        handlers = EventHandlers(cache, self.enqueue, self.progress_interval)
        self.feed = Feed(self.cluster, cache, self.faults, self.random, handlers)
        self.due = {}
        self.feed.relist()
        for kind, namespace, name in self.cluster.objects:
            if kind == names.KIND:
                self.enqueue((namespace or "", name), 0.0)
        self.operator = Reconciler(
            self.cluster, cache, self.progress_interval, clock=lambda: self.now, timer=lambda: self.elapsed
        )

    def elapse(self, seconds: float) -> None:
        self.now += seconds
        self.elapsed += seconds

    def enqueue(self, key: Key, after: float) -> None:
        self.due[key] = min(self.elapsed + after, self.due.get(key, math.inf))

    def is_due(self, key: Key) -> bool:
        return self.due.get(key, math.inf) <= self.elapsed

    async def pass_over(self, job: str) -> None:
        """A pass over the job, if somebody has asked for one."""
        if self.is_due((NAMESPACE, job)):
            await self.reconcile(job)

    async def reconcile(self, job: str) -> None:
        """One pass of the operator, which may be killed in it."""
        key = (NAMESPACE, job)
        self.due.pop(key, None)
        try:
            after = await self.operator(key)
        except Crash:
            self.crashes += 1
            self.restart_operator()
            return
        except (Conflict, NotFound):
            after = 0.0  # as the queue does: another pass
        except ApiError:
            after = FIRST_RETRY
        if after is not None:
            self.enqueue(key, after)

    async def offer_capacity(self) -> None:
        if self.is_due(CAPACITY):
            del self.due[CAPACITY]
            for job in await self.operator.offer_capacity():
                self.enqueue(job, 0.0)
