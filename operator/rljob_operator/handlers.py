"""What becomes of every event: the object enters the cache, and the jobs that it concerns are reconciled.

All handlers are `on.event`: the other kinds of handlers write finalizers or annotations into the objects they serve. All are coroutines, because
kopf runs plain functions in threads, and the cache belongs to one. Events of pods and reports come from reflector.py, to `take` as well.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import kopf

from rljob_api import names
from rljob_operator.cache.cache import job_of
from rljob_operator.cache.cluster import CHILD_KINDS, ROOM, ClusterCache
from rljob_operator.kube.api import Key, Object, resource

log = logging.getLogger(__name__)

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
EVERYWHERE = ("Node", "Pod")
"""Kinds that are watched in all namespaces: they say what is free on the nodes."""
SERVED = ("RLJob", "ConfigMap", *CHILD_KINDS)
"""Kinds that are watched where jobs are served."""
REFLECTED = ("Pod", "ConfigMap")
"""Kinds that kopf does not watch (see reflector.py)."""
SELECTORS = dict.fromkeys((*EVERYWHERE, "RLJob"), "") | dict.fromkeys(("ConfigMap", *CHILD_KINDS), OURS)
"""By kind, the label selector with which the API server narrows lists and watches."""
ROOM_DELAY = 5.0
"""Seconds from when a pod frees its place to when waiting jobs are reconciled: in a busy cluster places become free all the time."""


class EventHandlers:
    """`add_after(job, seconds)` asks for a reconcile. `progress_interval`: the seconds that the numbers of a report may wait for one."""

    def __init__(self, cache: ClusterCache, add_after: Callable[[Key, float], None], progress_interval: float) -> None:
        self._cache, self._add_after, self._interval = cache, add_after, progress_interval
        self.events = Counter[str]()
        """How many there were, by kind."""

    def register(self, registry: kopf.OperatorRegistry, kinds: Iterable[str]) -> None:
        for kind in kinds:
            kopf.on.event(*resource(kind), id=f"cache-{kind}", param=kind, registry=registry)(self.on_event)

    async def on_event(self, *, event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
        """`param`: the kind. An event of type None is part of a list."""
        self.take(param, {**event["object"], "kind": param}, gone=event["type"] == "DELETED")

    def take(self, kind: str, obj: Object, *, gone: bool = False) -> None:
        self.events[kind] += 1
        cache = self._cache.of_kind(kind)
        self.changed(kind, cache.remove(obj) if gone else cache.put(obj))
        if kind == "ConfigMap" and (job := job_of(obj)):  # a report, perhaps of nothing but a heartbeat and numbers
            self._add_after(job, self._interval)

    def changed(self, kind: str, groups: set[Key]) -> None:
        """Something is new for these groups of the kind's cache."""
        for job in self._cache.jobs_of(kind, groups):
            self._add_after(job, 0.0)
        if self._frees_room(kind, groups):
            for job in self._cache.waiting():
                self._add_after(job, ROOM_DELAY)

    def _frees_room(self, kind: str, groups: set[Key]) -> bool:
        """A job that is gone frees its assignments, also those that no pod has taken yet."""
        if kind == "RLJob":
            return any(self._cache.jobs.get(job) is None for job in groups)
        return ROOM in groups or (kind == "Node" and bool(groups))
