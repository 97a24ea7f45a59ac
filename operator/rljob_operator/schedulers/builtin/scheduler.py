"""The `builtin` scheduler's cycles: all jobs that ask are placed together, and each takes its result when it is reconciled."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

from rljob_api.status_parts import PlacementReport
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Key
from rljob_operator.model.ordinals import target
from rljob_operator.model.refused_pods import dispensable_pods, lacks_pods
from rljob_operator.model.scheduling import Claim, SchedulingRequest, SchedulingResult
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.schedulers.builtin.cache import SchedulerCache
from rljob_operator.schedulers.builtin.cycle import (
    MOST_CLAIMS,
    helped,
    may_claim,
    may_reserve,
    offers_more,
    refuge,
    schedule_pending,
)
from rljob_operator.schedulers.builtin.request import JobView, relocation, scheduling_request
from rljob_operator.schedulers.builtin.reservations import Holder, ends_before
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Placement

log = logging.getLogger(__name__)

UNPLANNABLE = "the job cannot be planned, which is a fault of rljob ({}): report it with the operator's log"

REFUGE_SECONDS = 10.0
"""Seconds for which an answer of `refuge` is used again: it plans on the whole cluster, and a job on a bad node asks in every reconcile."""

MOST_TRIED = 4
"""Bad nodes that are left together, at most, if there is no capacity to leave all of them: each number is a plan."""


class GangScheduler:
    """A cycle places the jobs that are new, those that have not taken their result yet, and of those that wait the ones that may fit now. Results are
    used as long as they are valid, so that many jobs are placed in one cycle and not in one each. All of this state may be lost without harm: an
    assignment counts when the status holds it.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self._cache, self._capacity = SchedulerCache(cache), cache.capacity
        self._capacity.break_promises()
        self._planning = asyncio.Lock()
        self._reserved: dict[Key, SchedulingResult] = {}
        """Results whose jobs have not been reconciled yet. Their nodes are promised."""
        self._assumed: set[Key] = set()
        """Jobs whose results are being written to status, as in kube-scheduler's cache. Their nodes are promised."""
        self._unschedulable: dict[Key, SchedulingResult] = {}
        """Results that lack some or all of the nodes that were asked for."""
        self._unplannable: set[Key] = set()
        """Jobs whose last plan has failed: cycles of others leave them out."""
        self._claims: dict[Key, Claim] = {}
        """Of jobs for which others leave their nodes."""
        self._uninformed: set[Key] = set()
        """Jobs whose claims have changed since they were reconciled."""
        self._victims: dict[Key, Key] = {}
        """Jobs that have to leave, with those that they leave for."""
        self._refuges: dict[Key, tuple[SchedulingRequest, float, frozenset[str]]] = {}
        """The last answers of `refuge`, with their times, and the requests for all nodes that were to be left."""
        self._without_pods: set[Key] = set()
        """Jobs that asked for nothing when they were reconciled last, since pods of theirs are refused: cycles of others leave them out."""
        self._forgotten: set[Key] = set()
        """Jobs that were forgotten while a cycle was planned."""
        self._left: dict[str, Node] = {}
        """What the last cycle left free, by node."""
        self._seen = 0
        """Version of the capacity up to which `_grown` is known."""
        self._grown: set[str] = set()
        """Nodes that offer more than the last cycle left."""

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
            result = await self._result(request, s.now)
            self._reserved.pop(key, None)
            self._assumed.add(key)
        try:
            yield result
        finally:
            self._assumed.discard(key)
            self._capacity.promise(key, {})
            if result.taken():  # what it still lacks, it asks for in its next reconcile
                self._unschedulable.pop(key, None)

    async def offer(self) -> set[Key]:
        """Places waiting jobs in capacity that has become free. Returns the jobs that have nodes to take, and so are to be reconciled."""
        async with self._planning:
            alone = await self._offer()
            uninformed, self._uninformed = self._uninformed, set()
            return {*self._reserved, *self._victims, *uninformed, *alone}

    async def _offer(self) -> set[Key]:
        """Returns the jobs that have to be placed one by one, since one of them cannot be planned."""
        asking = {*self._reserved, *self._unschedulable}
        try:
            if self._unschedulable and self._offers():
                await self._place(())
        except Exception:
            log.exception("a cycle has failed, and its jobs are placed one by one")
            return asking
        return set()

    def preemptor(self, s: Snapshot) -> str:
        """Namespace and name of the job of higher priority for which this one has to leave its nodes; empty: there is none."""
        by = self._victims.get((s.job.namespace, s.job.name))
        return "/".join(by) if by else ""

    async def refuge(self, s: Snapshot, leaving: Sequence[str]) -> frozenset[str] | None:
        """These nodes if the whole gang has capacity without them, or else as many from the first on as it can leave, at most four; None: there are
        none to leave.

        For jobs that other schedulers place, all nodes or none, as far as their capacity tells: all of their pods are replaced, which then could not
        go back to a cordoned node.
        """
        view = self._view(s) if leaving else None
        if view is None:
            return None
        request = relocation(view, self._cache.node, frozenset(leaving))
        known = self._refuges.get(request.job)
        if known is None or known[0] != request or not 0 <= s.now - known[1] < REFUGE_SECONDS:
            most = min(len(leaving) - 1, MOST_TRIED) if view.spec.scheduling.facts.assigns_nodes else 0
            fewer = (frozenset(leaving[:n]) for n in range(most, 0, -1))
            requests = {nodes: relocation(view, self._cache.node, nodes) for nodes in (frozenset(leaving), *fewer)}
            bad = await asyncio.to_thread(refuge, self._capacity.cluster(but=request.job), requests)
            known = self._refuges[request.job] = (request, s.now, bad)
        return known[2]

    def forget(self, job: Key) -> None:
        """Drops what is known of a job that was deleted."""
        self._cache.forget(job)
        self._drop(job)
        self._without_pods.discard(job)
        self._victims.pop(job, None)
        self._refuges.pop(job, None)

    def _drop(self, job: Key) -> None:
        """Drops the results of a job that asks for nothing any more."""
        if self._reserved.pop(job, None):
            self._capacity.promise(job, {})
        self._unschedulable.pop(job, None)
        self._unplannable.discard(job)
        self._withdraw(job)
        if self._planning.locked():
            self._forgotten.add(job)

    def _withdraw(self, job: Key) -> None:
        """Nobody has to leave for the job any more who has not begun to."""
        self._claims.pop(job, None)
        self._victims = {victim: by for victim, by in self._victims.items() if by != job}

    def _request(self, s: Snapshot) -> SchedulingRequest | None:
        key = (s.job.namespace, s.job.name)
        useless, without = lacks_pods(s), dispensable_pods(s)
        request = None if useless else self._asked(s, without)
        if useless or (without and request is None):
            self._without_pods.add(key)
        else:
            self._without_pods.discard(key)
        return request

    def _asked(self, s: Snapshot, without: Collection[str]) -> SchedulingRequest | None:
        view, current = self._view(s), target(s, s.status)
        if view is None or current is None:
            return None
        return scheduling_request(view, self._cache.node, current.ahead, without)

    def _view(self, s: Snapshot) -> JobView | None:
        spec = s.spec_of(s.status.attempt)
        if spec is None or s.is_void(s.status.attempt):
            return None
        limit = s.policy.reserve_after_seconds
        claims = partial(self._cache.claimed, s.job, spec, s.policy)
        return JobView(
            job=s.job,
            spec=spec,
            suspend=s.spec_suspend,
            status=s.status,
            pods=s.pods,
            now=s.now,
            lifecycle=s.lifecycle,
            reserve_after=limit,
            claimed=claims,
        )

    async def _result(self, request: SchedulingRequest, now: float) -> SchedulingResult:
        """A job that cannot be planned, which is a fault of rljob, keeps no other from its nodes: when a cycle fails, the job is placed alone, until
        that succeeds."""
        if request.job not in self._unplannable:
            try:
                return self._known(request) or await self._schedule(request, now)
            except Exception:
                log.exception("a cycle has failed, and %s/%s is placed alone", *request.job)
        self._unschedulable.pop(request.job, None)
        try:
            (result,) = await self._place([request], alone=True)
        except Exception as error:
            self._unplannable.add(request.job)
            return SchedulingResult(
                request, Placement(problem=UNPLANNABLE.format(type(error).__name__)), PlacementReport()
            )
        self._unplannable.discard(request.job)
        return result

    def _known(self, request: SchedulingRequest) -> SchedulingResult | None:
        """The result of an earlier cycle for the same request, if it is valid: its nodes are still free, or nothing became free that would help. A
        claim is planned again: only time tells which pods do not end, whose nodes it may count on."""
        reserved, refused = self._reserved.get(request.job), self._unschedulable.get(request.job)
        if reserved and reserved.request == request:
            return reserved if reserved.still_fits(self._capacity.free) else None
        if refused and not refused.claim and self._is_same(refused.request, request):
            refused = self._unschedulable[request.job] = replace(refused, request=request)
            return None if self._helped([request], self._capacity.cluster()) else refused
        return None

    def _is_same(self, before: SchedulingRequest, now: SchedulingRequest) -> bool:
        """Whether both have the same result. A job preempts others once its pods exist, which changes something only if there are such others."""
        same = replace(now, preempts=before.preempts) == before
        return same and (now.preempts == before.preempts or not may_claim(now, self._holders([now])))

    def _helped(self, waiting: Sequence[SchedulingRequest], cluster: Cluster) -> list[SchedulingRequest]:
        """Those requests that may fit now: on what is kept for nobody, or, if they are done in time, for a reservation."""
        now, claims = self._cache.now(), self._claims.values()
        parts: tuple[list[SchedulingRequest], list[SchedulingRequest]] = ([], [])
        for one in waiting:
            parts[any(ends_before(one, kept, now) for kept in claims)].append(one)
        others, short = parts
        return helped(short, self._offers(), cluster) + helped(others, self._offers(), self._unclaimed(cluster))

    def _unclaimed(self, cluster: Cluster) -> Cluster:
        """The cluster without what is kept for jobs."""
        for claim in self._claims.values():
            cluster = cluster.without(claim.taken)
        return cluster

    def _offers(self) -> list[Node]:
        """The nodes that offer more than the last cycle left."""
        for name in self._capacity.changed_since(self._seen):
            node = self._capacity.free(name)
            if node and offers_more(self._left.get(name), node):
                self._grown.add(name)
            else:
                self._grown.discard(name)
        self._seen = self._capacity.version
        return [node for node in map(self._capacity.free, self._grown) if node]

    async def _schedule(self, request: SchedulingRequest, now: float) -> SchedulingResult:
        await self._cache.validate()
        known = {request.job, *self._assumed, *self._reserved, *self._unschedulable}
        known |= self._unplannable | self._without_pods
        results = await self._place([request, *self._cache.pending(now, known)])
        return next(v for v in results if v.request is request)

    async def _place(self, news: Sequence[SchedulingRequest], alone: bool = False) -> list[SchedulingResult]:
        """One cycle, with requests that were not planned before. `alone`: with no others, which keep what they have."""
        new = {one.job for one in news}
        planned = new if alone else {*self._reserved, *new}
        again = [v.request for job, v in self._reserved.items() if job in planned - new]
        for job in planned:
            self._capacity.promise(job, {})
        settled = {*new, *self._reserved, *self._assumed}
        waiting = [v.request for job, v in self._unschedulable.items() if job not in settled and not alone]
        cluster = self._capacity.cluster()
        holders = self._holders([*news, *again, *waiting])
        claiming = [one for one in waiting if one.job in self._claims or (one.preempts and may_claim(one, holders))]
        overdue = sorted((one for one in waiting if one.overdue), key=lambda one: one.order)
        claiming += islice(may_reserve(overdue, holders, cluster), MOST_CLAIMS) if overdue else ()
        hopeful = self._helped(waiting, cluster)
        placeable = {one.job: one for one in [*hopeful, *claiming]}
        pending = [*news, *again, *placeable.values()]
        self._forgotten.clear()
        arguments = (cluster, pending, holders, dict(self._claims), self._cache.now())
        for job in planned:  # they are promised nothing now
            self._reserved.pop(job, None)
        results, left = await asyncio.to_thread(schedule_pending, *arguments)
        if not alone:  # what others wait for is still to be offered
            self._left, self._grown = {node.name: node for node in left.nodes}, set()
        for result in results:
            self._keep(result)
        if self._victims or self._uninformed:
            self._capacity.announce()
        return results

    def _holders(self, requests: Sequence[SchedulingRequest]) -> list[Holder]:
        """Jobs whose nodes these requests may get."""
        if any(one.overdue for one in requests):
            return self._cache.holders(math.inf)
        priorities = [one.priority for one in requests if one.preempts]
        return self._cache.holders(max(priorities)) if priorities else []

    def _keep(self, result: SchedulingResult) -> None:
        job = result.request.job
        self._unschedulable.pop(job, None)
        if job in self._forgotten:
            return
        if _kept(result.claim) != _kept(self._claims.get(job)):
            self._uninformed.add(job)
        self._withdraw(job)
        if result.claim:
            self._claims[job] = result.claim
            self._victims |= dict.fromkeys(result.claim.victims, job)
        if not result.plan.problem:
            self._reserved[job] = result
            self._capacity.promise(job, result.taken())
        if not result.complete:
            self._unschedulable[job] = result


def _kept(claim: Claim | None) -> object:
    """What a job is informed of: the time at which it may start changes with every step of others."""
    return claim and (claim.victims, claim.taken)
