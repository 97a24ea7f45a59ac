"""The cluster and all jobs, as the cache show them: what is free, and who waits."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

from rljob_api import names
from rljob_api.quantity import Resources, add
from rljob_api.status import PlacementStatus
from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.placement.asked import View, asked
from rljob_placement.cluster import Cluster, Node


class Board:
    """Nothing is remembered between looks. ClusterCache hold every status that we wrote at once, so seats are never given twice."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def node(self, name: str) -> Node | None:
        entry = self._cache.nodes.get(("", name))
        return entry.value.place if entry else None

    def cluster(self, promised: Iterable[Mapping[str, Resources]] = ()) -> Cluster:
        """Free is what neither pods on the node take, nor pods on their way to it, nor who has a promise."""
        taken: dict[str, Resources] = {}
        used = ((use.node, use.requests) for use in self._cache.usage.values() if use.requests)
        seats = (seat for job in self._cache.jobs.values() for seat in self._reserved(job))
        for node, requests in itertools.chain(used, seats, *(p.items() for p in promised)):
            taken[node] = add(taken[node], requests) if node in taken else requests
        return Cluster(tuple(node.place for node in self._cache.nodes.values())).without(taken)

    def waiting(self, now: float, but: Collection[Key]) -> list[SchedulingRequest]:
        """Other jobs that ask for something."""
        views = (self._view(job, now) for job in self._cache.jobs.values() if _key(job) not in but)
        return [wish for view in views if view and (wish := asked(view, self.node))]

    def _view(self, job: CachedJob, now: float) -> View | None:
        spec = job.validation.spec
        if spec is None or job.meta.deletion_timestamp or spec.scheduling.backend != "builtin":
            return None
        pods = [entry.value for entry in self._cache.pods.of(_key(job)).values()]
        return View(job=job.meta, spec=spec, status=job.status, pods=pods, now=now)

    def _reserved(self, job: CachedJob) -> Iterator[tuple[str, Resources]]:
        """Seats of pods that are not seen on a node yet."""
        placement = job.status.placement
        for seat in placement.seats if placement and not job.meta.deletion_timestamp else ():
            seen = self._cache.usage.get((job.meta.namespace, seat.pod))
            if seen is None or not seen.value.node:
                yield seat.node, _needs(placement, seat.pod, job.meta.name)


def _key(job: CachedJob) -> Key:
    return job.meta.namespace, job.meta.name


def _needs(placement: PlacementStatus | None, pod: str, job: str) -> Resources:
    role = next((r for r in names.ROLES if pod.rpartition("-")[0] == names.gang(job, r)), "")
    return placement.needs.get(role, {}) if placement else {}
