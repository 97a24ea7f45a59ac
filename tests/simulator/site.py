"""A cluster in memory and the operator that serves it."""

from dataclasses import dataclass, field
from random import Random

from rljob_api.job_policy import DEFAULT_POLICY, JobPolicy
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Conflict
from rljob_operator.reconcile.reconciler import Reconciler
from simulator.cluster import Crash, FakeCluster
from simulator.feed import PROMPT, Faults, Feed

NAMESPACE = "research"


@dataclass(kw_only=True)
class Site:
    """Whoever inherits says what else happens in a turn."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    faults: Faults = PROMPT
    random: Random = field(default_factory=lambda: Random(0))
    policy: JobPolicy = DEFAULT_POLICY
    now: float = 1_000_000.0
    crashes: int = 0

    def __post_init__(self) -> None:
        self.restart_operator()

    def restart_operator(self) -> None:
        """Its cache begin with a list."""
        cache = ClusterCache(lambda: self.now, self.policy)
        self.cluster.revive()
        self.feed = Feed(self.cluster, cache, self.faults, self.random)
        self.feed.relist()
        self.operator = Reconciler(self.cluster, cache, progress_interval=0, clock=lambda: self.now)

    async def pass_over(self, job: str) -> None:
        """One pass of the operator, which may be killed in it."""
        try:
            await self.operator((NAMESPACE, job))
        except Crash:
            self.crashes += 1
            self.restart_operator()
        except Conflict:
            pass  # as the queue does: another pass
