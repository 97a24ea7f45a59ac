"""The cluster and all jobs, as the stores show them: what is free, and who waits."""

from collections.abc import Iterator

from rljob_api import names
from rljob_api.placement.cluster import Cluster, Node
from rljob_api.placement.quantity import Resources, add
from rljob_api.status import PlacementStatus
from rljob_operator.api import Key
from rljob_operator.placement.asked import Asked, View, asked
from rljob_operator.stores import SeenJob, Stores


class Board:
    """Nothing is remembered between looks. Stores hold every status that we wrote at once, so seats are never given twice."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    def nodes(self) -> dict[str, Node]:
        return {node.name: node.place for node in self._stores.nodes.values()}

    def cluster(self) -> Cluster:
        """Free is what neither pods on the node take nor pods on their way to it."""
        taken: dict[str, Resources] = {}
        for use in self._stores.usage.values():
            if use.requests:
                taken[use.node] = add(taken.get(use.node, {}), use.requests)
        for job in self._stores.jobs.values():
            for node, requests in self._reserved(job):
                taken[node] = add(taken.get(node, {}), requests)
        return Cluster(tuple(self.nodes().values())).without(taken)

    def waiting(self, now: float, but: Key) -> list[Asked]:
        """Other jobs that ask for something."""
        nodes = self.nodes()
        views = (self._view(job, now) for job in self._stores.jobs.values() if _key(job) != but)
        return [wish for view in views if view and (wish := asked(view, nodes))]

    def _view(self, job: SeenJob, now: float) -> View | None:
        spec = job.verdict.spec
        if spec is None or job.meta.deletion_timestamp or spec.scheduling.backend != "builtin":
            return None
        pods = [kept.value for kept in self._stores.pods.of(_key(job)).values()]
        return View(job=job.meta, spec=spec, status=job.status, pods=pods, now=now)

    def _reserved(self, job: SeenJob) -> Iterator[tuple[str, Resources]]:
        """Seats of pods that are not seen on a node yet."""
        placement = job.status.placement
        for seat in placement.seats if placement and not job.meta.deletion_timestamp else ():
            seen = self._stores.usage.get((job.meta.namespace, seat.pod))
            if seen is None or not seen.value.node:
                yield seat.node, _needs(placement, seat.pod, job.meta.name)


def _key(job: SeenJob) -> Key:
    return job.meta.namespace, job.meta.name


def _needs(placement: PlacementStatus | None, pod: str, job: str) -> Resources:
    role = next((r for r in names.ROLES if pod.rpartition("-")[0] == names.gang(job, r)), "")
    return placement.needs.get(role, {}) if placement else {}
