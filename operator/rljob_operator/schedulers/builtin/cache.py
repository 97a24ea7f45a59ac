"""The jobs that ask for nodes, and the nodes, from the caches."""

from collections.abc import Collection

from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.schedulers.builtin.request import JobView, scheduling_request
from rljob_placement.cluster import Node


class SchedulerCache:
    """Has no state of its own. The caches hold every status from the moment it is written, so no capacity is assigned twice."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache

    def node(self, name: str) -> Node | None:
        """The node as if nothing ran on it."""
        entry = self._cache.nodes.get(("", name))
        return entry.value.schedulable if entry else None

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


def _key(job: CachedJob) -> Key:
    return job.meta.namespace, job.meta.name
