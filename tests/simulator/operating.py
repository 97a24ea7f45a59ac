"""A reconciler before a cluster in memory."""

from random import Random

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.reconcile.reconciler import Reconciler
from simulator.cluster import FakeCluster
from simulator.feed import PROMPT, Feed


def operating(cluster: FakeCluster) -> Reconciler:
    """With cache that show the cluster as it is now."""
    cache = ClusterCache(lambda: 1000.0)
    Feed(cluster, cache, PROMPT, Random()).deliver()
    return Reconciler(cluster, cache, progress_interval=30, clock=lambda: 1000.0, timer=lambda: 1000.0)
