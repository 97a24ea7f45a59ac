"""Free capacity of the cluster, and the jobs that ask for some of it, from the caches."""

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
    """Has no state of its own. The caches hold every status from the moment it is written, so no capacity is assigned twice."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def node(self, name: str) -> Node | None:
        entry = self._cache.nodes.get(("", name))
        return entry.value.schedulable if entry else None

    def cluster(self, assumed: Iterable[Mapping[str, Resources]] = ()) -> Cluster:
        """The cluster, with what neither pods on a node request, nor assigned pods on their way to it, nor `assumed`: requests by node, which are
        not in any status yet."""
        taken: dict[str, Resources] = {}
        used = ((use.node, use.requests) for use in self._cache.usage.values() if use.requests)
        assigned = (found for job in self._cache.jobs.values() for found in self._assigned(job))
        for node, requests in itertools.chain(used, assigned, *(p.items() for p in assumed)):
            taken[node] = add(taken[node], requests) if node in taken else requests
        return Cluster(tuple(node.schedulable for node in self._cache.nodes.values())).without(taken)

    def pending(self, now: float, but: Collection[Key]) -> list[SchedulingRequest]:
        """Scheduling requests of all jobs that have one, without the jobs in `but`."""
        views = (self._view(job, now) for job in self._cache.jobs.values() if _key(job) not in but)
        return [found for view in views if view and (found := scheduling_request(view, self.node))]

    def _view(self, job: CachedJob, now: float) -> JobView | None:
        spec, status = job.validation.result.accepted, job.readable_status
        if spec is None or status is None or job.meta.deletion_timestamp:
            return None
        pods = [entry.value for entry in self._cache.pods.of(_key(job)).values()]
        return JobView(job=job.meta, spec=spec, status=status, pods=pods, now=now)

    def _assigned(self, job: CachedJob) -> Iterator[tuple[str, Resources]]:
        """Node and requests of assigned pods, as far as no pod of the same name takes them there already.

        A pod that still terminates on another node has not arrived. One that terminates on the assigned node will have freed its requests when its
        successor arrives, since a StatefulSet has one pod of a name at a time.
        """
        placement = job.readable_status.placement if job.readable_status else None
        for assignment in placement.assignments if placement and not job.meta.deletion_timestamp else ():
            seen = self._cache.usage.get((job.meta.namespace, assignment.pod))
            there = (seen.value.requests if seen and seen.value.node == assignment.node else None) or {}
            wanted = _requests(placement, assignment.pod, job.meta.name)
            if missing := {name: v - there.get(name, 0) for name, v in wanted.items() if v > there.get(name, 0)}:
                yield assignment.node, missing


def _key(job: CachedJob) -> Key:
    return job.meta.namespace, job.meta.name


def _requests(placement: PlacementStatus | None, pod: str, job: str) -> Resources:
    return placement.requests.get(names.role_of(job, pod), {}) if placement else {}
