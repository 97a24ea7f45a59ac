"""Capacity that is left in the cluster, and the jobs that ask for some, as the cache show them."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

from rljob_api import names
from rljob_api.quantity import Resources, add
from rljob_api.status import PlacementStatus
from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.schedulers.builtin.request import JobView, scheduling_request
from rljob_placement.cluster import Cluster, Node


class SchedulerCache:
    """Remembers nothing of its own: the cache holds every status from the moment it is written, so no capacity is given twice."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def node(self, name: str) -> Node | None:
        entry = self._cache.nodes.get(("", name))
        return entry.value.schedulable if entry else None

    def cluster(self, assumed: Iterable[Mapping[str, Resources]] = ()) -> Cluster:
        """Free is what neither pods on a node take, nor assigned pods on their way to it, nor `assumed`: by node, not yet in any status."""
        taken: dict[str, Resources] = {}
        used = ((use.node, use.requests) for use in self._cache.usage.values() if use.requests)
        assigned = (found for job in self._cache.jobs.values() for found in self._assigned(job))
        for node, requests in itertools.chain(used, assigned, *(p.items() for p in assumed)):
            taken[node] = add(taken[node], requests) if node in taken else requests
        return Cluster(tuple(node.schedulable for node in self._cache.nodes.values())).without(taken)

    def pending(self, now: float, but: Collection[Key]) -> list[SchedulingRequest]:
        """Requests of all jobs but these."""
        views = (self._view(job, now) for job in self._cache.jobs.values() if _key(job) not in but)
        return [found for view in views if view and (found := scheduling_request(view, self.node))]

    def _view(self, job: CachedJob, now: float) -> JobView | None:
        spec, status = job.validation.result.accepted, job.readable_status
        if spec is None or status is None or job.meta.deletion_timestamp:
            return None
        pods = [entry.value for entry in self._cache.pods.of(_key(job)).values()]
        return JobView(job=job.meta, spec=spec, status=status, pods=pods, now=now)

    def _assigned(self, job: CachedJob) -> Iterator[tuple[str, Resources]]:
        """By node: what assigned pods will take there in addition to what pods of their names take already.

        A pod that is still ending on another node has not arrived. One that is ending on its successor's node makes room for it: a StatefulSet
        gives a name to one pod at a time.
        """
        placement = job.readable_status.placement if job.readable_status else None
        for seat in placement.assignments if placement and not job.meta.deletion_timestamp else ():
            seen = self._cache.usage.get((job.meta.namespace, seat.pod))
            there = (seen.value.requests if seen and seen.value.node == seat.node else None) or {}
            wanted = _requests(placement, seat.pod, job.meta.name)
            if missing := {name: v - there.get(name, 0) for name, v in wanted.items() if v > there.get(name, 0)}:
                yield seat.node, missing


def _key(job: CachedJob) -> Key:
    return job.meta.namespace, job.meta.name


def _requests(placement: PlacementStatus | None, pod: str, job: str) -> Resources:
    return placement.requests.get(names.role_of(job, pod), {}) if placement else {}
