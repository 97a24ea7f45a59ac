"""Event handlers: each event's object enters the cache, and the jobs that it concerns are reconciled.

All of kopf's handlers here are `on.event`, since its other kinds write finalizers or annotations into the objects they serve. All are coroutines,
since kopf runs plain functions in threads, and the cache belongs to the thread of the event loop. Events of jobs, pods and reports come from
reflector.py.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import kopf

from rljob_api import names
from rljob_operator.cache.cache import job_of
from rljob_operator.cache.cluster import CAPACITY, CHILD_KINDS, ClusterCache
from rljob_operator.kube.api import Key, Object, resource

log = logging.getLogger(__name__)

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
EVERYWHERE = ("Node", "Pod")
"""Kinds that are watched in all namespaces, because they decide what is free on the nodes."""
SERVED = ("RLJob", "ConfigMap", *CHILD_KINDS)
"""Kinds that are watched in the namespaces whose jobs are served."""
REFLECTED = ("RLJob", "Pod", "ConfigMap")
"""Kinds that kopf does not watch (see reflector.py)."""
SELECTORS = dict.fromkeys((*EVERYWHERE, "RLJob"), "") | dict.fromkeys(("ConfigMap", *CHILD_KINDS), OURS)
"""By kind, the label selector with which the API server narrows lists and watches."""
CAPACITY_DELAY = 5.0
"""Seconds after capacity has grown until it is offered to waiting jobs: in a busy cluster, pods end all the time."""


class EventHandlers:
    """`add_after(key, seconds)` asks for a reconcile of a job, or for an offer of the CAPACITY. `progress_interval`: seconds until a report of
    nothing but numbers is reconciled."""

    def __init__(self, cache: ClusterCache, add_after: Callable[[Key, float], None], progress_interval: float) -> None:
        self._cache, self._add_after, self._interval = cache, add_after, progress_interval
        cache.on_change(self.changed)
        cache.capacity.on_growth(lambda: add_after(CAPACITY, CAPACITY_DELAY))
        self.events = Counter[str]()
        """Number of events, by kind."""

    def register(self, registry: kopf.OperatorRegistry, kinds: Iterable[str]) -> None:
        for kind in kinds:
            kopf.on.event(*resource(kind), id=f"cache-{kind}", param=kind, registry=registry)(self.on_event)

    async def on_event(self, *, event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
        """kopf's handler of all kinds. `param`: the kind. kopf gives the objects of a list as events of type None."""
        self.handle(param, {**event["object"], "kind": param}, gone=event["type"] == "DELETED")

    def handle(self, kind: str, obj: Object, *, gone: bool = False) -> None:
        """An object was added or changed, or deleted (`gone`)."""
        self.events[kind] += 1
        cache = self._cache.of_kind(kind)
        self.changed(kind, cache.remove(obj) if gone else cache.put(obj))
        if kind == "ConfigMap" and (
            job := job_of(obj)
        ):  # a report of nothing but a heartbeat and numbers changes no group
            self._add_after(job, self._interval)

    def changed(self, kind: str, groups: set[Key]) -> None:
        """Asks for reconciles after a change of the kind's cache for these groups."""
        for job in self._cache.jobs_of(kind, groups):
            self._add_after(job, 0.0)
