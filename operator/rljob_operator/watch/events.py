"""Each event's object enters the cache, and the jobs that it concerns are reconciled, whoever watches its kind. And lists, which tell what kopf does
not: when everything is known, and which objects vanished while a watch was down.

kopf lists a kind when it starts, and again when the API server has forgotten the version from which a watch would continue (410). It never reports
what was deleted in between. So whenever kopf has listed a kind, it is listed here again, and what the list lacks leaves the cache. The lists of
kinds that kopf does not watch (reflector.py) are made here, too.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from rljob_api import names
from rljob_api.callbacks import always
from rljob_operator.cache.cache import job_of, key_of
from rljob_operator.cache.cluster import CAPACITY, CHILD_KINDS, SANDBOX_KINDS, ClusterCache
from rljob_operator.kube.api import Api, ApiError, Key, NotFound, Object, scope_of

OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
EVERYWHERE = ("Node", "Pod")
"""Kinds that are watched in all namespaces, because they decide what is free on the nodes."""
SERVED = ("RLJob", "ConfigMap", *CHILD_KINDS)
"""Kinds that are watched in the namespaces whose jobs are served, in every cluster."""
REFLECTED = ("RLJob", "Pod", "ConfigMap")
"""Kinds that kopf does not watch (see reflector.py)."""
SELECTORS = dict.fromkeys((*EVERYWHERE, "RLJob"), "") | dict.fromkeys(("ConfigMap", *CHILD_KINDS, *SANDBOX_KINDS), OURS)
"""By kind, the label selector with which the API server narrows lists and watches."""
CAPACITY_DELAY = 5.0
"""Seconds after capacity has grown until it is offered to waiting jobs: in a busy cluster, pods end all the time."""


class EventHandlers:
    """`add_after(key, seconds)` asks for a reconcile of a job, or for an offer of the CAPACITY. `progress_interval`: seconds until a report of
    nothing but numbers is reconciled; `acts`: whether this operator acts, and so begins with lists of everything: before that, events are counted."""

    def __init__(
        self,
        cache: ClusterCache,
        add_after: Callable[[Key, float], None],
        progress_interval: float,
        acts: Callable[[], bool] = always,
    ) -> None:
        self._cache, self._add_after, self._interval, self._acts = cache, add_after, progress_interval, acts
        cache.on_change(self.changed)
        cache.capacity.on_growth(partial(add_after, CAPACITY, CAPACITY_DELAY))
        self.events = Counter[str]()
        """Number of events, by kind."""

    def handle(self, kind: str, obj: Object, *, gone: bool = False) -> None:
        """An object was added or changed, or deleted (`gone`)."""
        self.events[kind] += 1
        if not self._acts():
            return
        cache = self._cache.of_kind(kind)
        self.changed(kind, cache.remove(obj) if gone else cache.put(obj))
        job = job_of(obj) if kind == "ConfigMap" else None
        if job:  # a report of nothing but a heartbeat and numbers changes no group
            self._add_after(job, self._interval)

    def changed(self, kind: str, groups: set[Key]) -> None:
        """Asks for reconciles after a change of the kind's cache for these groups."""
        for job in self._cache.jobs_of(kind, groups):
            self._add_after(job, 0.0)


log = logging.getLogger(__name__)

Scope = tuple[str, str | None]
"""A kind, and a namespace; None: all namespaces."""

RETRY, RELIST_INTERVAL = 5.0, 600.0
"""Seconds after a list that failed until the next try; seconds between two lists of everything, in case that events were lost."""


class Relist:
    """`namespaces`: those that are served; empty: all. `changed(kind, groups)` is called with the groups of a cache that a list has changed. `kinds`:
    that are watched in these namespaces.

    Without the CRD of jobs there are none: a list of them that fails with 404 says so, and the watch continues when the CRD is there again.

    A namespace is served while all of its kinds, and those of the whole cluster, can be listed. When a namespace is deleted, the operator loses its
    rights in it: it is served again as soon as it can be listed again, and the others are served meanwhile.
    """

    def __init__(
        self,
        api: Api,
        cache: ClusterCache,
        namespaces: Sequence[str],
        changed: Callable[[str, set[Key]], None],
        kinds: Sequence[str] = SERVED,
    ) -> None:
        self._api, self._cache, self._changed, self.kinds = api, cache, changed, kinds
        self._namespaces: Sequence[str | None] = namespaces or [None]
        self.scopes = {*_scopes(EVERYWHERE, [None]), *_scopes(kinds, self._namespaces)}
        self._due, self._listed, self._forbidden = set[Scope](), set[Scope](), set[Scope]()
        self._watched = set[Scope]()
        """Those that kopf has listed."""
        self._served = set[str | None]()
        self.listed = False
        """Whether everything has been listed that may be read, since `begin`."""
        self._news = asyncio.Condition()

    async def observe(
        self, server: str, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Middleware of kopf's aiohttp client: notes what kopf lists, and what it may not read. `server`: the API server's URL, which has a path of
        its own behind a proxy such as Rancher's."""
        response = await handler(request)
        query, scope = request.url.query, scope_of(request.url.path.removeprefix(urlsplit(server).path.rstrip("/")))
        if scope in self.scopes and "continue" not in query:
            await self.seen(*scope, response.status, watch="watch" in query)
        return response

    def serves(self, namespace: str) -> bool:
        """Whether everything in this namespace is known. Until then, what was not listed yet would look absent."""
        return (namespace if namespace in self._namespaces else None) in self._served

    def begin(self) -> None:
        """Before any job is served, everything is listed that kopf watches: changes may have been missed since it was listed last. Reflectors list
        their kinds themselves, and what kopf does not watch yet, it will list."""
        self._due |= self._watched - self._forbidden
        self._listed, self._served, self.listed = set(), set(), False

    async def complete(self) -> None:
        """Waits until everything has been listed that may be read."""
        async with self._news:
            await self._news.wait_for(lambda: self.scopes <= self._listed | self._forbidden)
        self.listed = True

    async def run(self) -> None:
        """Makes the lists that are due, until cancelled."""
        while True:
            await self._wait()
            failed = [scope for scope in self._next() if not await self._try_list(*scope)]
            if failed:
                await asyncio.sleep(RETRY)
                self._due |= set(failed) - self._forbidden

    async def seen(self, kind: str, namespace: str | None, status: int, *, watch: bool) -> None:
        """A list, or a watch (`watch`), of this scope was answered with this status code, by kopf's request or a reflector's."""
        scope = (kind, namespace)
        async with self._news:
            if status == 403:
                self._forbid(scope)
            elif status < 300 and (not watch or scope in self._forbidden):
                self._forbidden.discard(scope)
                self._due.add(scope)
                self._watched.add(scope)
            self._news.notify_all()

    def _forbid(self, scope: Scope) -> None:
        if scope not in self._forbidden:
            log.warning("%s in namespace %s may not be read: its jobs are not served until it may", *scope)
        self._forbidden.add(scope)
        self._listed.discard(scope)
        self._due.discard(scope)
        self._serve()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(RELIST_INTERVAL), self._news:
                await self._news.wait_for(lambda: self._due)
        except TimeoutError:
            self._due = self.scopes - self._forbidden

    def _next(self) -> list[Scope]:
        """The scopes that are due, after all jobs: if a job has vanished with its children, that must be known first, or they would be made again."""
        due, self._due = self._due, set()
        jobs = {scope for scope in _scopes(["RLJob"], self._namespaces) if scope not in self._forbidden}
        return [*jobs, *(due - jobs)]

    async def _try_list(self, kind: str, namespace: str | None) -> bool:
        """Lists a scope. False if that failed."""
        try:
            await self._list(kind, namespace)
        except ApiError as error:
            log.warning("%s: listed again in %.0f s", error, RETRY)
            return False
        return True

    async def list_after_jobs(self, kind: str, namespace: str | None) -> str:
        """Lists the jobs of the namespace, then this kind, if it is another. Returns the list's resourceVersion, for a watch. Raises ApiError."""
        if kind != "RLJob" and ("RLJob", namespace) in self.scopes - self._forbidden:
            with suppress(NotFound):  # there are none
                await self._list("RLJob", namespace)
        return await self._list(kind, namespace)

    async def _list(self, kind: str, namespace: str | None) -> str:
        cache, listed, version = self._cache.of_kind(kind), set[Key](), "0"
        try:
            async for page in self._api.pages(kind, namespace, SELECTORS[kind]):
                self._changed(kind, set[Key]().union(*map(cache.put, page.objects)))
                listed |= set(map(key_of, page.objects))
                version = page.version
        except NotFound:
            if kind == "RLJob":  # the CRD was deleted, and every job with it
                self._changed(kind, self._cache.jobs.unlist(namespace))
            raise
        self._changed(kind, cache.prune(listed, version, namespace))
        async with self._news:
            self._listed.add((kind, namespace))
            self._forbidden.discard((kind, namespace))
            self._news.notify_all()
        self._serve()
        return version

    def _serve(self) -> None:
        """Updates which namespaces are served, and reconciles the jobs of those that are from now on."""
        before, everywhere = self._served, _scopes(EVERYWHERE, [None])
        self._served = {n for n in self._namespaces if self._listed >= {*everywhere, *_scopes(self.kinds, [n])}}
        new = self._served - before
        if new:
            jobs = self._cache.jobs.groups_of(lambda job: None in new or job.meta.namespace in new)
            self._changed("RLJob", jobs)


def _scopes(kinds: Iterable[str], namespaces: Iterable[str | None]) -> list[Scope]:
    return [(kind, namespace) for kind in kinds for namespace in namespaces]
