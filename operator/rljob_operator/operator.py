"""The process. kopf starts and ends it, logs in, discovers and watches; leader election, lists and reconciles run alongside."""

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import kopf

from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_operator import health
from rljob_operator.cache.cluster import CAPACITY, ClusterCache
from rljob_operator.handlers import EVERYWHERE, REFLECTED, SERVED, EventHandlers
from rljob_operator.kube.api import ApiError, Key
from rljob_operator.kube.client import KubernetesApi
from rljob_operator.kube.credentials import LIFETIME, Credentials
from rljob_operator.kube.leader_election import LeaderElector
from rljob_operator.kube.rate_limit import RateLimiter, WatchLimiter
from rljob_operator.kube.watches import Watches
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.queue import WorkQueue
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.reflector import reflect
from rljob_operator.relist import Relist
from rljob_operator.settings import kopf_settings

log = logging.getLogger(__name__)

CRD_PAUSE, LOGIN_PAUSE = 2.0, 1.0
"""Seconds between two checks for the CRD, and between two logins."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line, see `__main__.parse_options`."""

    namespaces: Sequence[str] = ()
    """Namespaces that are served; empty: all."""
    lease_namespace: str = "default"
    identity: str
    progress_interval: float = 30.0
    network_policies: bool = True
    job_policy: JobPolicy = DEFAULT_POLICY
    qps: float = 300.0
    burst: int = 600
    health_port: int = 8080


class Operator:
    """The parts of the process and how they are connected. Create it in a running event loop."""

    def __init__(self, options: Options, credentials: Credentials) -> None:
        self._options, self._credentials = options, credentials
        self._health = health.HealthCheck()
        # so that a renewal never waits behind other requests
        self._lease_api = KubernetesApi(credentials, RateLimiter(qps=5, burst=10), 1)
        self._elector = LeaderElector(
            self._lease_api, options.lease_namespace, options.identity, self._health.heartbeat
        )
        limiter = RateLimiter(options.qps, options.burst)
        self._api = KubernetesApi(credentials, limiter, may_write=self._elector.is_leader)
        self._watches = Watches(credentials)
        self._cache = ClusterCache(time.time, options.job_policy)
        self._handlers = EventHandlers(self._cache, self._add_after, options.progress_interval)
        self._metrics = Metrics(self._cache, self._api.calls, self._lag, self._handlers.events)
        self._relist = Relist(self._api, self._cache, options.namespaces, self._handlers.changed)
        self._queue: WorkQueue | None = None
        """While we hold the lease. All jobs are added to a new one when everything is listed, so nothing is kept for it before."""
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Runs until a signal or an error."""
        server = await health.serve(
            self._options.health_port, lambda: self._health.problem(self._lag()), self._metrics.text
        )
        self._acting = asyncio.create_task(self._elector.lead(self._act))
        self._acting.add_done_callback(lambda _: self._stop.set())
        try:
            async with asyncio.TaskGroup() as group:
                for kinds, namespaces in self._watched():
                    group.create_task(self._kopf(kinds, namespaces))
            if not self._acting.cancelled():
                self._acting.result()
        finally:
            await self._cleanup()
            await server.cleanup()
            await self._api.close()
            await self._watches.close()
            await self._lease_api.close()

    def _watched(self) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """Kinds and namespaces (empty: all) of each of kopf's operators: kopf has one list of namespaces for all kinds, so there may be two."""
        everywhere, served = ([kind for kind in kinds if kind not in REFLECTED] for kinds in (EVERYWHERE, SERVED))
        if self._options.namespaces:
            yield everywhere, ()
            yield served, self._options.namespaces
        else:
            yield [*everywhere, *served], ()

    async def _kopf(self, kinds: Sequence[str], namespaces: Sequence[str]) -> None:
        """Runs one of kopf's operators. When one stops, `_cleanup` stops the other."""
        registry = kopf.OperatorRegistry()
        kopf.on.startup(registry=registry)(self._startup)
        kopf.on.login(registry=registry)(self._login())
        kopf.on.cleanup(registry=registry)(self._cleanup)
        self._handlers.register(registry, kinds)
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            namespaces=namespaces,
            clusterwide=not namespaces,
            standalone=True,
            stop_flag=self._stop,
        )

    async def _startup(self, **_: Any) -> None:
        """Waits for the CRD: kopf never watches a kind that it cannot discover when it starts."""
        waiting = False
        while True:
            try:
                if await self._api.serves("RLJob"):
                    return
                log.log(logging.DEBUG if waiting else logging.INFO, "the CRD of RLJobs is not installed yet")
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

    async def _cleanup(self, **_: Any) -> None:
        self._stop.set()
        self._acting.cancel()
        await asyncio.wait([self._acting])

    async def _act(self) -> None:
        """What only the leader may do: reconcile, and list and watch what kopf does not. Begins as a new process does, with lists of everything, but
        the cache need not read again what has not changed."""
        reconciler = Reconciler(self._api, self._cache, self._options.progress_interval, self._options.network_policies)
        queue = self._queue = WorkQueue(self._metrics.timed(partial(self._reconcile, reconciler)))
        self._relist.begin()
        try:
            async with asyncio.TaskGroup() as group:
                reflectors = reflect(self._relist, self._watches, self._handlers.handle)
                for work in (self._relist.run(), reflectors, self._reconcile_all(queue)):
                    group.create_task(work)
        finally:
            self._queue = None

    async def _reconcile_all(self, queue: WorkQueue) -> None:
        await self._relist.complete()
        log.info("all kinds are listed")
        await queue.run()

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> float | None:
        if key == CAPACITY:
            for job in await reconciler.offer_capacity():
                self._add_after(job, 0.0)
            return None
        return await reconciler(key) if self._relist.serves(key[0]) else None

    def _add_after(self, key: Key, seconds: float) -> None:
        if self._queue:
            self._queue.add_after(key, seconds)

    def _lag(self) -> float:
        return self._queue.lag() if self._queue else 0.0


async def operate(options: Options) -> None:
    await Operator(options, Credentials()).run()
