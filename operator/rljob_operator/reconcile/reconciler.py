"""One reconcile of one job."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from rljob_api import reasons
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Api, ApiError, Key, Object
from rljob_operator.model.children import REFUSALS, ChildProblem
from rljob_operator.model.observer import Observer, ReconcilerState
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.decide import Decision, Event, decide
from rljob_operator.policies.describe import is_observational
from rljob_operator.policies.nodes import nodes_to_leave
from rljob_operator.reconcile.events import EventRecorder
from rljob_operator.reconcile.large_specs import LargeSpecs
from rljob_operator.reconcile.status_pace import StatusPace
from rljob_operator.reconcile.writer import ForeignStatus, Writer
from rljob_operator.render import render
from rljob_operator.render.agent_sandbox import unneeded
from rljob_operator.schedulers.builtin.scheduler import GangScheduler

log = logging.getLogger(__name__)

FOREIGN = Event(
    "Warning",
    reasons.FOREIGN_STATUS,
    "somebody else writes the status of this job; if that is another installation of rljob, uninstall one of them, or give each its watchNamespaces",
)


class Reconciler:
    """Reconciles one job: observe, decide, write.

    A status that holds an intent is written first, then what follows from it, then a status that only describes, then events. Errors propagate to the
    queue, which retries.
    """

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        progress_interval: float,
        network_policies: bool = True,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds since the epoch; `timer`: of a clock that nobody sets."""
        self._cache = cache
        self._state = ReconcilerState()
        self._observer = Observer(api, cache, self._state, progress_interval, network_policies)
        self._writer = Writer(api, cache)
        self._scheduler = GangScheduler(cache)
        self._specs = LargeSpecs()
        self._events = EventRecorder(api)
        self._pace = StatusPace(progress_interval, timer)
        self._clock = clock

    async def __call__(self, key: Key) -> float | None:
        """Returns the seconds after which the job is due again; None: only a change calls for another reconcile."""
        entry = self._cache.jobs.get(key)
        if entry is None or entry.value.meta.deletion_timestamp:  # the garbage collector deletes its children
            self.forget(key)
            await self._writer.let_all_go(key)
            return None
        job = entry.value
        again = await self._specs.settle(key, job.validation, self._clock())
        if self._cache.jobs.get(key) is not entry:  # it has changed meanwhile
            return 0.0
        if job.validation.is_unchecked:
            return again
        s = await self._observer.snapshot(key, job, self._clock())
        async with self._scheduler.cycle(s) as result:  # the cycle ends when its assignments are in the status
            refuge = await self._scheduler.refuge(s, nodes_to_leave(s))
            preemptor = self._scheduler.preemptor(s)
            if result or refuge is not None or preemptor:  # what the snapshot has computed is lost with a copy
                s = replace(s, scheduling=result, refuge=refuge, preemptor=preemptor)
            decision = decide(s)
            has_intent = not is_observational(s.status, decision.status)
            if has_intent:
                await self._write_status(key, job.object, s, decision)
        try:
            conflicts = await self._act(s, decision)
        finally:  # status is written last, so an operator that crashes on every write still makes progress
            postponed = None if has_intent else await self._write_status(key, job.object, s, decision)
            await self._events.record(s.job, decision.events, s.now)
        self._state.conflicts[key] = conflicts
        retry = self._writer.due(s, conflicts)
        if conflicts != s.conflicts:
            return 0.0
        waits = [decision.requeue_after, retry, postponed, again]
        waits.append(self._observer.due(key, s.now))
        return min((t for t in waits if t is not None), default=None)

    def forget(self, key: Key) -> None:
        """Drops what is known of a job that is gone."""
        self._state.forget(key)
        self._observer.forget(key)
        self._scheduler.forget(key)
        self._cache.forget(key)
        self._specs.forget(key)
        self._writer.forget(key)
        self._pace.forget(key)
        self._events.forget(key)

    async def offer_capacity(self) -> set[Key]:
        """Places jobs that wait for nodes in capacity that has become free. Returns those that are to be reconciled."""
        return await self._scheduler.offer()

    async def _act(self, s: Snapshot, decision: Decision) -> tuple[ChildProblem, ...]:
        """Writes what follows from the decided status. Returns what could not be written."""
        wanted = render(s, decision.status)
        problems = await self._writer.children(s, wanted)
        ungate = () if problems else decision.ungate
        if wanted:  # without a valid spec nobody knows
            problems += tuple(await self._writer.delete(s, unneeded(s, wanted)))
        problems += tuple(await self._writer.delete_pods(s, decision.delete))
        problems += tuple(await self._writer.delete_pods(s, decision.force, force=True))
        problems += tuple(await self._writer.let_go(s, decision.let_go))
        if decision.status.cleaned_up:
            problems += tuple(await self._writer.delete_children(s))
        return problems + tuple(await self._writer.ungate(s, ungate))

    async def _write_status(self, key: Key, job: Object, s: Snapshot, decision: Decision) -> float | None:
        """Writes the status if it has changed. Returns the seconds by which the write is postponed; None: it is not."""
        if decision.status == s.status and "status" in job:
            return None
        wait = 0.0 if decision.events else self._pace.wait(key, s.status, decision.status)
        if wait:
            return wait
        try:
            with self._pace.writing(key):
                await self._writer.status(job, decision.status)
        except ForeignStatus:
            await self._events.record(s.job, (FOREIGN,), s.now)
            raise
        except ApiError as error:
            if error.code in REFUSALS:  # only an event can say so
                said = f"the API server refuses the job's status: {error}"
                await self._events.record(s.job, (Event("Warning", reasons.STATUS_REFUSED, said),), s.now)
            raise
        return None
