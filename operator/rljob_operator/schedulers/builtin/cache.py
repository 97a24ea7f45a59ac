"""What the `builtin` scheduler reads of the caches: requests of jobs, and what jobs hold."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from rljob_api import names
from rljob_api.policy import JobPolicy
from rljob_api.spec import RLJobSpec
from rljob_api.spec.run import LifecycleSpec
from rljob_api.status import JobStatus, RLJobMeta
from rljob_operator.cache.cluster import CachedJob, ClusterCache
from rljob_operator.cache.pods import Pod
from rljob_operator.kube.api import Key
from rljob_operator.model.children import controls
from rljob_operator.model.ordinals import is_held
from rljob_operator.model.scheduling import SchedulingRequest
from rljob_operator.model.snapshot import is_open, scaled
from rljob_operator.schedulers.builtin.request import JobView, scheduling_request
from rljob_operator.schedulers.builtin.reservations import Holder, remaining
from rljob_operator.times import seconds
from rljob_placement.cluster import Node
from rljob_placement.devices import Claimed, claimed

log = logging.getLogger(__name__)


class SchedulerCache:
    """The caches hold every status from the moment it is written, so no capacity is assigned twice."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._settled: dict[Key, tuple[object, ...]] = {}
        """Jobs that lacked nothing in the last cycle, and would not by time alone, with what that followed from. Most jobs run, and are not looked
        at again in the cycle of each new one."""

    def node(self, name: str) -> Node | None:
        """The node as if nothing ran on it."""
        entry = self._cache.nodes.get(("", name))
        return entry.value.schedulable if entry else None

    async def validate(self) -> None:
        """Jobs that have come since the last cycle have requests then, too."""
        await self._cache.validate()

    def pending(self, now: float, but: Collection[Key]) -> list[SchedulingRequest]:
        """Scheduling requests of all jobs that have one, without the jobs in `but`, and without those whose specs have not been validated yet."""
        jobs = [job for job in self._cache.jobs.values() if _key(job) not in but]
        before, self._settled = self._settled, {}
        return list(_of_each(jobs, partial(self._request, now=now, before=before)))

    def _request(
        self, job: CachedJob, now: float, before: Mapping[Key, tuple[object, ...]]
    ) -> SchedulingRequest | None:
        """`before`: jobs that lacked nothing, with what that followed from."""
        key = _key(job)
        basis = self._basis(key, job)
        if basis and before.get(key) == basis:
            self._settled[key] = basis
            return None
        view = self._view(job, now)
        request = scheduling_request(view, self.node) if view else None
        if request is None and basis:
            self._settled[key] = basis
        return request

    def forget(self, job: Key) -> None:
        self._settled.pop(job, None)

    def _basis(self, key: Key, job: CachedJob) -> tuple[object, ...]:
        """What the request of a job follows from; empty: from time, too, or from what nodes say. An equal one has the same request."""
        pods = [entry.value for entry in self._cache.pods.of(key).values()]
        nodes = self._cache.nodes
        if not pods or not all(pod.ready and not pod.deleting and nodes.get(("", pod.node)) for pod in pods):
            return ()
        status = job.readable_status
        if status is None or status.nodes:
            return ()
        assigned = status.placement.assignments if status.placement else []
        if not {one.pod for one in assigned} <= {pod.name for pod in pods}:
            return ()
        control = self._cache.config_maps.get((key[0], names.control(key[1])))
        return (job, job.validation.so_far, control and control.value, *pods)

    def holders(self, below: float) -> list[Holder]:
        """Jobs that hold nodes and have a lower priority than `below`, or are about to give them back."""
        holders = _of_each(self._cache.jobs.values(), partial(self._holder, below=below))
        return [holder for holder in holders if holder.taken]

    def _holder(self, job: CachedJob, below: float) -> Holder | None:
        status = job.readable_status
        spec = self._spec_in_force(job, status) if status else None
        if spec is None or status is None or not spec.scheduling.facts.assigns_nodes:
            return None
        ends = bool(status.outcome or status.suspended or job.meta.deletion_timestamp)
        leaving = ends or status.is_leaving or status.wants_suspend(bool(job.validation.raw.get("suspend")))
        if not (leaving or spec.scheduling.priority < below):
            return None
        key, now = _key(job), self.now()
        until = None if leaving or status.placement is None else seconds(status.placement.borrowed_until) or None
        lifecycle = (job.validation.so_far.accepted or spec).lifecycle
        left = 0.0 if leaving else remaining(spec, lifecycle, status, now)
        known = [at for at in (until, None if left is None else now + left) if at is not None]
        return Holder(
            job=key,
            uid=job.meta.uid,
            created=job.meta.creation_timestamp,
            priority=spec.scheduling.priority,
            taken=self._cache.capacity.held(key, self._cache.pods.of(key), but=self._held(key, lifecycle)),
            leaving=leaving,
            ends=min(known, default=None),
            until=until,
        )

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._cache.clock()

    def _spec_in_force(self, job: CachedJob, status: JobStatus) -> RLJobSpec | None:
        """The spec that its pods were made for, as `Snapshot.spec_of` has it: of the open attempt, or the job's own. A job with an invalid spec holds
        nodes, too."""
        entry = self._cache.config_maps.get((job.meta.namespace, names.control(job.meta.name)))
        control = entry.value.control if entry and controls(job.meta, entry.value.object) else None
        own, attempt = job.validation.so_far.accepted, status.attempt
        if control is None or own is None:
            return control.spec if control else own
        if attempt is None or not is_open(attempt) or control.attempt != attempt.number:
            return own
        return scaled(control.spec, own) if control.spec.scheduling.facts.scalable else control.spec

    def _held(self, job: Key, lifecycle: LifecycleSpec) -> set[Key]:
        """Pods of the job that may never free their nodes."""
        limit, now = lifecycle.node_loss_seconds, self._cache.clock()
        pods = ((key, self._on_its_node(job, entry.value)) for key, entry in self._cache.pods.of(job).items())
        return {key for key, pod in pods if is_held(pod, limit, now)}

    def _on_its_node(self, job: Key, pod: Pod) -> Pod:
        """The pod, with whether its node answers as far as the cache knows."""
        entry = None if pod.ready else self._cache.nodes.get(("", pod.node))
        return self._cache.deleted.remembered(job, entry.value.holding(pod) if entry else pod)

    def _view(self, job: CachedJob, now: float) -> JobView | None:
        own, status = job.validation.so_far.accepted, job.readable_status
        spec = self._spec_in_force(job, status) if own and status else None
        if own is None or spec is None or status is None or job.meta.deletion_timestamp:
            return None
        key = _key(job)
        pods = [self._on_its_node(key, entry.value) for entry in self._cache.pods.of(key).values()]
        limit = job.validation.policy.reserve_after_seconds
        claims = partial(self.claimed, job.meta, spec, job.validation.policy)
        return JobView(
            job=job.meta,
            spec=spec,
            suspend=own.suspend,
            status=status,
            pods=pods,
            now=now,
            lifecycle=own.lifecycle,
            reserve_after=limit,
            claimed=claims,
        )

    def claimed(self, job: RLJobMeta, spec: RLJobSpec, policy: JobPolicy) -> Claimed:
        """What the claims of the job's pods take."""
        return claimed(spec, policy.pod_patch, job.namespace, self._cache.devices, self._cache.offers)


def _of_each[T](jobs: Iterable[CachedJob], of: Callable[[CachedJob], T | None]) -> Iterator[T]:
    """What `of` says of each job. One for which it raises is left out: it must not keep the others from their nodes."""
    for job in jobs:
        try:
            known = of(job)
        except Exception:
            log.exception("%s/%s is left out of scheduling", *_key(job))
            continue
        if known is not None:
            yield known


def _key(job: CachedJob) -> Key:
    return job.meta.namespace, job.meta.name
