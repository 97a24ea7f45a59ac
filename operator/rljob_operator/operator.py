"""The process: its parts, and how they are connected. kopf starts and ends it and watches; leader election, lists and reconciles run alongside."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_operator import endpoints
from rljob_operator.cache.cluster import CAPACITY, SANDBOX_KINDS, ClusterCache
from rljob_operator.endpoints import Metrics
from rljob_operator.kube.api import Key
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.leader_election import LeaderElector
from rljob_operator.reconcile.queue import WorkQueue
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch.events import SERVED, EventHandlers, Relist
from rljob_operator.watch.kopf_side import KopfSide
from rljob_operator.watch.polled import DeviceInventory, DrainRequests
from rljob_operator.watch.reflector import Watches, reflect

log = logging.getLogger(__name__)


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
        self._options = options
        self._health = endpoints.HealthCheck()
        # Apart from the other requests, so that a renewal never waits behind them
        self._lease_api = KubernetesApi(credentials, RateLimiter(qps=5, burst=10), 1)
        self._cache = ClusterCache(time.time, options.job_policy)
        self._elector = LeaderElector(
            self._lease_api, options.lease_namespace, options.identity, self._health.heartbeat, self._cache.clear
        )
        limiter = RateLimiter(options.qps, options.burst)
        self._api = KubernetesApi(credentials, limiter, may_write=self._elector.is_leader)
        self._queue = WorkQueue()
        self._handlers = EventHandlers(
            self._cache, self._queue.add_after, options.progress_interval, self._queue.is_open
        )
        kinds = (*SERVED, *(SANDBOX_KINDS if options.job_policy.agent_sandbox else ()))
        self._relist = Relist(self._api, self._cache, options.namespaces, self._handlers.changed, kinds)
        self._metrics = Metrics(
            self._cache,
            self._api.calls,
            self._queue.lag,
            self._handlers.events,
            leads=self._elector.is_leader,
            listed=lambda: self._relist.listed,
        )
        self._watches = Watches(credentials)
        self._kopf = KopfSide(credentials, self._api, self._relist, self._handlers, options.namespaces)

    async def run(self) -> None:
        """Runs until a signal or an error."""
        server = await endpoints.serve(self._options.health_port, self._problem, self._metrics.text)
        acting = asyncio.create_task(self._elector.lead(self._act))
        acting.add_done_callback(self._stop)
        try:
            await self._kopf.run(partial(_ended, acting))
            if not acting.cancelled():
                acting.result()
        finally:
            await _ended(acting)
            await server.cleanup()
            await self.close()

    def _stop(self, _: asyncio.Task[None]) -> None:
        self._kopf.stop()

    async def close(self) -> None:
        for connections in (self._api, self._watches, self._lease_api):
            await connections.close()

    def _problem(self) -> str:
        return self._health.problem(self._queue.lag())

    async def _act(self) -> None:
        """What only the leader may do: reconcile, and list and watch what kopf does not. Begins as a new process does, with lists of everything. But
        if no other operator has acted meanwhile, the cache need not read again what has not changed."""
        reconciler = Reconciler(self._api, self._cache, self._options.progress_interval, self._options.network_policies)
        requests = DrainRequests(self._api, self._cache, self._options.job_policy.leave_nodes.requests)
        self._relist.begin()
        with self._queue.open():
            async with asyncio.TaskGroup() as group:
                group.create_task(self._relist.run())
                group.create_task(reflect(self._relist, self._watches, self._handlers.handle))
                group.create_task(requests.run())
                group.create_task(DeviceInventory(self._api, self._cache).run())
                group.create_task(self._reconcile_all(reconciler, requests))

    async def _reconcile_all(self, reconciler: Reconciler, requests: DrainRequests) -> None:
        await self._relist.complete()
        await requests.known()
        await self._cache.validate()
        log.info("all kinds are listed")
        await self._queue.run(self._metrics.timed(partial(self._reconcile, reconciler)))

    async def _reconcile(self, reconciler: Reconciler, key: Key) -> float | None:
        """A job that is gone is forgotten whether its namespace is served or not: nobody will ask for it again."""
        if key == CAPACITY:
            for job in await reconciler.offer_capacity():
                self._queue.add_after(job, 0.0)
            return None
        if self._relist.serves(key[0]):
            return await reconciler(key)
        if self._cache.jobs.get(key) is None:
            reconciler.forget(key)
        return None


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels a task, and waits for its end."""
    task.cancel()
    await asyncio.wait([task])


async def operate(options: Options) -> None:
    await Operator(options, Credentials()).run()
