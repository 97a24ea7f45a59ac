"""The `builtin` scheduler's cycles: all jobs that ask are placed together, and each takes its result when it is reconciled."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.scheduling import SchedulingRequest, SchedulingResult
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from rljob_operator.schedulers.builtin.cycle import has_grown, has_refuge, schedule_pending
from rljob_operator.schedulers.builtin.request import JobView, relocation, scheduling_request
from rljob_placement.cluster import Cluster

REFUGE_SECONDS = 10.0
"""Seconds for which an answer of `has_refuge` is used again: it plans on the whole cluster, and a job on a bad node asks in every reconcile."""


class GangScheduler:
    """A cycle places every job that asks at that moment. Its results are used as long as they are valid, so that many jobs are placed in one cycle
    and not in one each. All of this state may be lost without harm: an assignment counts when the status holds it.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = SchedulerCache(cache)
        self._planning = asyncio.Lock()
        self._reserved: dict[Key, SchedulingResult] = {}
        """Results of the last cycle whose jobs have not been reconciled yet."""
        self._assumed: dict[Key, SchedulingResult] = {}
        """Results that are being written to status, as in kube-scheduler's cache: their nodes count as taken."""
        self._unschedulable: dict[Key, SchedulingResult] = {}
        """Results of the last cycle that lack some or all of the nodes that were asked for."""
        self._refuges: dict[Key, tuple[SchedulingRequest, float, bool]] = {}
        """The last answers of `has_refuge`, with their requests and times."""
        self._left = Cluster(())
        """The cluster with what the last cycle left free."""

    @asynccontextmanager
    async def cycle(self, s: Snapshot) -> AsyncIterator[SchedulingResult | None]:
        """Gives the job's result, and lasts until the caller has written its assignments to the status. None if the job asks for nothing."""
        key = (s.job.namespace, s.job.name)
        request = self._request(s)
        if request is None:
            self._drop(key)
            yield None
            return
        async with self._planning:
            result = self._known(request) or await self._schedule(request, s.now)
            self._reserved.pop(key, None)
            self._assumed[key] = result
        try:
            yield result
        finally:
            del self._assumed[key]

    async def has_refuge(self, s: Snapshot, leaving: frozenset[str]) -> bool | None:
        """Whether the whole gang has capacity without these nodes; None: there are none to leave. Also for jobs that other schedulers place, as far
        as their nodes' capacity tells."""
        view = self._view(s)
        if not leaving or view is None:
            return None
        request = relocation(view, self._cache.node, leaving)
        known = self._refuges.get(request.job)
        if known is None or known[0] != request or not 0 <= s.now - known[1] < REFUGE_SECONDS:
            taken = {job: result for job, result in (self._assumed | self._reserved).items() if job != request.job}
            found = await asyncio.to_thread(has_refuge, self._free(taken), request)
            known = self._refuges[request.job] = (request, s.now, found)
        return known[2]

    def forget(self, job: Key) -> None:
        """Drops what is known of a job that was deleted."""
        self._drop(job)
        self._refuges.pop(job, None)

    def _drop(self, job: Key) -> None:
        """Drops the results of a job that asks for nothing any more."""
        self._reserved.pop(job, None)
        self._unschedulable.pop(job, None)

    def _request(self, s: Snapshot) -> SchedulingRequest | None:
        view = self._view(s)
        return None if view is None else scheduling_request(view, self._cache.node)

    def _view(self, s: Snapshot) -> JobView | None:
        spec = s.spec_of(s.status.attempt)
        if spec is None or s.is_void(s.status.attempt):
            return None
        return JobView(job=s.job, spec=spec, status=s.status, pods=s.pods, now=s.now)

    def _known(self, request: SchedulingRequest) -> SchedulingResult | None:
        """The last cycle's result for the same request, if it is valid: its nodes are still free, or it has none and nothing became free since."""
        if (found := self._reserved.get(request.job)) and found.request == request:
            return found if found.fits(self._free(self._assumed)) else None
        if (found := self._unschedulable.get(request.job)) and found.request == request:
            return None if has_grown(self._left, self._free(self._assumed | self._reserved)) else found
        return None

    async def _schedule(self, request: SchedulingRequest, now: float) -> SchedulingResult:
        others = self._cache.pending(now, {request.job, *self._assumed})
        free = self._free(self._assumed)
        results, self._left = await asyncio.to_thread(schedule_pending, free, [request, *others])
        self._reserved = {v.request.job: v for v in results if not v.plan.problem}
        self._unschedulable = {v.request.job: v for v in results if not v.complete}
        return next(v for v in results if v.request is request)

    def _free(self, but: Mapping[Key, SchedulingResult]) -> Cluster:
        """What is free in the cluster without what these results take."""
        return self._cache.cluster(result.taken() for result in but.values())
