"""Keeping the cache in step with the API server: per kind and namespace one list, then one watch that goes on where the last one ended."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rljob_api import names
from rljob_operator.cache.cache import Cache, job_of
from rljob_operator.cache.cluster import CHILD_KINDS, ROOM, ClusterCache, Pods
from rljob_operator.kube.api import Api, ApiError, Gone, Key, Object

log = logging.getLogger(__name__)

RELIST = 600.0
"""Seconds after which everything is listed again, in case events were lost."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds after a list or watch that failed; doubles."""
ROOM_DELAY = 5.0
"""Seconds from when a pod gives its place back to when those who wait look again: in a busy cluster places become free all the time."""
OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
SELECTORS = {"RLJob": "", "Node": "", "Pod": ""} | dict.fromkeys(("ConfigMap", *CHILD_KINDS), OURS)


class Reflector:
    """One kind in one namespace (None: all, or none for nodes). `changed` gets the groups of the store for which something is new, `heard` every
    object that a watch brings."""

    def __init__(
        self,
        api: Api,
        store: Cache[Any] | Pods,
        kind: str,
        namespace: str | None,
        selector: str,
        changed: Callable[[set[Key]], None],
        heard: Callable[[Object], None] | None = None,
    ) -> None:
        self._api, self._store = api, store
        self._what = (kind, namespace, selector)
        self._changed, self._each = changed, heard
        self._version = ""
        self._heard: float | None = None
        self.synced = asyncio.Event()

    def silence(self) -> float:
        """Seconds since the API server answered a list or sent something; 0 before it was asked."""
        return time.monotonic() - self._heard if self._heard is not None else 0.0

    async def run(self) -> None:
        """For ever. What fails is tried again, from the beginning."""
        self._heard = time.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                await self._list()
                pause = FIRST_PAUSE
                async with asyncio.timeout(RELIST):
                    while True:
                        await self._follow()
            except (TimeoutError, Gone):
                continue
            except ApiError as error:
                log.warning("%s: %s; listed again in %.1f s", self._what[0], error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _list(self) -> None:
        kind, namespace, selector = self._what
        listing = await self._api.listing(kind, namespace, selector)
        self._version = listing.version
        self._heard = time.monotonic()
        self._changed(self._store.replace(listing, namespace))
        self.synced.set()

    async def _follow(self) -> None:
        """Until the server ends it."""
        kind, namespace, selector = self._what
        async for change in self._api.watch(kind, namespace, selector, self._version):
            self._heard = time.monotonic()
            self._version = change.object["metadata"]["resourceVersion"]
            self._take(change.type, change.object)

    def _take(self, type_: str, obj: Object) -> None:
        if type_ != "BOOKMARK":
            news = self._store.remove(obj) if type_ == "DELETED" else self._store.put(obj)
            if news:
                self._changed(news)
            if self._each:
                self._each(obj)


class Watches:
    """All that the operator needs to see. `enqueue` gets the key of every job for which something is new, and the seconds that this may wait.

    `progress_interval`: for how long numbers that rank 0 reports may.
    """

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        namespaces: Sequence[str],
        enqueue: Callable[[Key, float], None],
        progress_interval: float,
    ) -> None:
        self._api, self._cache, self._enqueue, self._interval = api, cache, enqueue, progress_interval
        self._reflectors = list(self._all([*namespaces] or [None]))

    def _all(self, scopes: Sequence[str | None]) -> Iterator[Reflector]:
        for kind, selector in SELECTORS.items():
            for namespace in (None,) if kind in ("Node", "Pod") else scopes:
                heard = self._heard if kind == "ConfigMap" else None
                yield Reflector(self._api, self._cache.of_kind(kind), kind, namespace, selector, self._on(kind), heard)

    def _on(self, kind: str) -> Callable[[set[Key]], None]:
        def changed(groups: set[Key]) -> None:
            for job in self._cache.jobs_of(kind, groups):
                self._enqueue(job, 0.0)
            if self._gives_room(kind, groups):
                for job in self._cache.waiting():
                    self._enqueue(job, ROOM_DELAY)

        return changed

    def _gives_room(self, kind: str, groups: set[Key]) -> bool:
        """A job that is gone gives back its seats, also those that no pod has taken yet."""
        if kind == "RLJob":
            return any(self._cache.jobs.get(job) is None for job in groups)
        return ROOM in groups or (kind == "Node" and bool(groups))

    def _heard(self, obj: Object) -> None:
        """A report, perhaps of nothing but a heartbeat and numbers."""
        if job := job_of(obj):
            self._enqueue(job, self._interval)

    def silence(self) -> float:
        return max(r.silence() for r in self._reflectors)

    async def synced(self) -> None:
        """Every kind was listed once. Nobody may decide before: what is not known yet looks absent."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())
