"""The cluster and all jobs, as the stores show them: what is free, and who waits."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

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

    def node(self, name: str) -> Node | None:
        kept = self._stores.nodes.get(("", name))
        return kept.value.place if kept else None

    def cluster(self, promised: Iterable[Mapping[str, Resources]] = ()) -> Cluster:
        """Free is what neither pods on the node take, nor pods on their way to it, nor who has a promise."""
        taken: dict[str, Resources] = {}
        used = ((use.node, use.requests) for use in self._stores.usage.values() if use.requests)
        seats = (seat for job in self._stores.jobs.values() for seat in self._reserved(job))
        for node, requests in itertools.chain(used, seats, *(p.items() for p in promised)):
            taken[node] = add(taken[node], requests) if node in taken else requests
        return Cluster(tuple(node.place for node in self._stores.nodes.values())).without(taken)

    def waiting(self, now: float, but: Collection[Key]) -> list[Asked]:
        """Other jobs that ask for something."""
        views = (self._view(job, now) for job in self._stores.jobs.values() if _key(job) not in but)
        return [wish for view in views if view and (wish := asked(view, self.node))]

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
