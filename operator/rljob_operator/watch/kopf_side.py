"""kopf's side: it takes signals, logs in, discovers, lists and watches the quiet kinds, and writes nothing.

All of its handlers here are `on.event`, since its other kinds write finalizers or annotations into the objects they serve. All are coroutines, since
kopf runs plain functions in threads, and the cache belongs to the thread of the event loop.
"""

import asyncio
import datetime
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import kopf

from rljob_operator.cache.cluster import SANDBOX_KINDS
from rljob_operator.kube.api import ApiError, resource
from rljob_operator.kube.client import KubernetesApi, RateLimiter, WatchLimiter
from rljob_operator.kube.credentials import LIFETIME, Credentials
from rljob_operator.watch.events import EVERYWHERE, REFLECTED, SELECTORS, EventHandlers, Relist

log = logging.getLogger(__name__)

CRD_PAUSE, LOGIN_PAUSE = 2.0, 1.0
"""Seconds between two checks for the CRD, and between two logins."""


class Backoffs(Iterable[float]):
    """Seconds between kopf's attempts of one request, without an end. If the process ended at every outage, the kubelet would restart it later and
    later; and a namespace that may not be read must not stop the others."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1.0, 2.0, 4.0, 8.0), itertools.repeat(15.0))


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last-handled state: we reconcile what is there, not what has changed. So kopf writes no annotations and copies no objects."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # it would need rights over all namespaces and CRDs
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.queueing.idle_timeout = 0.1  # a worker that waits holds the whole object
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 300
    settings.networking.request_timeout = 20
    settings.networking.error_backoffs = Backoffs()
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[resource(kind)] = selector
    return settings


class KopfSide:
    """Runs kopf until a signal, an error, or `stop`."""

    def __init__(
        self,
        credentials: Credentials,
        api: KubernetesApi,
        relist: Relist,
        handlers: EventHandlers,
        namespaces: Sequence[str],
    ) -> None:
        self._credentials, self._api, self._relist, self._handlers = credentials, api, relist, handlers
        self._namespaces = namespaces
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self._stopped.set()

    async def run(self, cleanup: Callable[[], Awaitable[None]]) -> None:
        """`cleanup` is awaited when one of kopf's operators ends, before the others do."""
        async with asyncio.TaskGroup() as group:
            for kinds, namespaces in self._watched():
                group.create_task(self._operate(kinds, namespaces, cleanup))

    def _watched(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """Kinds and namespaces (empty: all) of each of kopf's operators: kopf has one list of namespaces for all kinds, so there may be two."""
        everywhere, served = (
            [kind for kind in kinds if kind not in REFLECTED] for kinds in (EVERYWHERE, self._relist.kinds)
        )
        if self._namespaces:
            yield everywhere, ()
            yield served, self._namespaces
        else:
            yield [*everywhere, *served], ()

    async def _operate(
        self, kinds: Sequence[str], namespaces: Sequence[str], cleanup: Callable[[], Awaitable[None]]
    ) -> None:
        async def end(**_: Any) -> None:
            self.stop()
            await cleanup()

        registry = kopf.OperatorRegistry()
        kopf.on.startup(registry=registry)(self._startup)
        kopf.on.login(registry=registry)(self._login())
        kopf.on.cleanup(registry=registry)(end)
        for kind in kinds:
            kopf.on.event(*resource(kind), id=f"cache-{kind}", param=kind, registry=registry)(on_event(self._handlers))
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            namespaces=namespaces,
            clusterwide=not namespaces,
            standalone=True,
            stop_flag=self._stopped,
        )

    async def _startup(self, **_: Any) -> None:
        """Waits for the CRDs: kopf never watches a kind that it cannot discover when it starts."""
        for kind in self._relist.kinds:
            if kind == "RLJob" or kind in SANDBOX_KINDS:
                await self._installed(kind)

    async def _installed(self, kind: str) -> None:
        waiting = False
        while True:
            try:
                if await self._api.serves(kind):
                    return
                log.log(logging.DEBUG if waiting else logging.INFO, "the CRD of %ss is not installed yet", kind)
                waiting = True
            except ApiError as error:
                log.warning("%s", error)
            await asyncio.sleep(CRD_PAUSE)

    def _login(self) -> Callable[..., Awaitable[kopf.AiohttpSession]]:
        """The login handler of one of kopf's operators, which kopf calls when credentials have expired or were refused."""
        limiter, watches = RateLimiter(1.0 / LOGIN_PAUSE, 1), WatchLimiter()

        async def login(**_: Any) -> kopf.AiohttpSession:
            await limiter.wait()  # kopf would call again at once if credentials are refused for good
            self._credentials.renew()
            server = self._credentials.server
            return kopf.AiohttpSession(
                server=server,
                aiohttp_session=self._credentials.session(0, watches, partial(self._relist.observe, server)),
                expiration=datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LIFETIME),
            )

        return login


def on_event(handlers: EventHandlers) -> Callable[..., Awaitable[None]]:
    """kopf's handler of all kinds. kopf gives the objects of a list as events of type None."""

    async def handle(*, event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
        """`param`: the kind."""
        handlers.handle(param, {**event["object"], "kind": param}, gone=event["type"] == "DELETED")

    return handle
