"""`python -m rljob_operator`: takes the lease, then watches and reconciles until it is told to end or loses the lease."""

import argparse
import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine

from rljob_operator import health
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.client import KubernetesApi, connect
from rljob_operator.kube.leader_election import LeaderElector, LeaseLost
from rljob_operator.kube.rate_limit import RateLimiter
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.queue import WorkQueue
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch import Watches

log = logging.getLogger(__name__)

GARBAGE = (20_000, 20, 100)
"""Python's defaults would go through all that the cache hold again and again while events are parsed, for two thirds of the time that takes."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rljob_operator", description=__doc__)
    parser.add_argument(
        "--namespace", action="append", default=[], help="serve this namespace only; may be repeated; default: all"
    )
    parser.add_argument("--lease-namespace", default="default", help="where the operator's own lease lives")
    parser.add_argument("--identity", default=socket.gethostname(), help="holder of the lease; the pod's name")
    parser.add_argument(
        "--progress-interval", type=float, default=30.0, help="seconds between writes of progress to a job's status"
    )
    parser.add_argument(
        "--network-policies",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="make a NetworkPolicy for each job; those that exist stay until their jobs go",
    )
    parser.add_argument("--qps", type=float, default=300.0, help="requests a second to the API server, in the long run")
    parser.add_argument("--burst", type=int, default=600, help="requests to the API server at once")
    parser.add_argument("--health-port", type=int, default=8080, help="port of /healthz")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser.parse_args()


async def operate(args: argparse.Namespace) -> None:
    """The lease comes first: nobody acts without it."""
    settings = await connect()
    api = KubernetesApi(settings, RateLimiter(args.qps, args.burst))
    lease_api = KubernetesApi(settings, RateLimiter(qps=5, burst=10))  # renewals never wait behind others
    cache = ClusterCache(time.time)
    reconciler = Reconciler(api, cache, args.progress_interval, args.network_policies)
    metrics = Metrics(cache, api.calls, lambda: queue.lag())
    queue = WorkQueue(metrics.timed(reconciler))
    watches = Watches(api, cache, args.namespace, queue.add_after, args.progress_interval)
    health_check = health.HealthCheck()
    server = await health.serve(
        args.health_port, lambda: health_check.problem(queue.lag(), watches.silence()), metrics.text
    )
    lease = LeaderElector(lease_api, args.lease_namespace, args.identity, health_check.heartbeat)
    told = _told()
    try:
        if await _first(lease.acquire(), told):
            log.info("%s holds the lease", args.identity)
            await _until(told, lease, watches, queue)
            await lease.release_lease()
    finally:
        await server.cleanup()
        await api.close()
        await lease_api.close()


def _told() -> asyncio.Event:
    """Set by SIGTERM, which a process that is PID 1 would not even hear."""
    told = asyncio.Event()
    for signal_ in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_, told.set)
    return told


async def _first(work: Coroutine[None, None, None], told: asyncio.Event) -> bool:
    """Whether the work was done before we were told to end."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(told.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not working.done():
        working.cancel()
        return False
    await working
    return True


async def _until(told: asyncio.Event, lease: LeaderElector, watches: Watches, queue: WorkQueue) -> None:
    """Until we are told to end, or one of the others fails."""
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(work) for work in (lease.renew(), watches.run(), _pass_for_ever(watches, queue))]
        await told.wait()
        for task in others:
            task.cancel()


async def _pass_for_ever(watches: Watches, queue: WorkQueue) -> None:
    await watches.synced()
    log.info("all kinds are listed")
    await queue.run()


def main() -> None:
    args = arguments()
    gc.set_threshold(*GARBAGE)
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(operate(args))
    except* LeaseLost as lost:
        sys.exit(f"{lost.exceptions[0]}; another operator may act now")


if __name__ == "__main__":
    main()
