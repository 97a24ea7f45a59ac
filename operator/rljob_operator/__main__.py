"""`python -m rljob_operator`: takes the lease, then watches and reconciles until it is told to end or loses the lease."""

import argparse
import asyncio
import logging
import socket
import sys

import kopf

from rljob_operator import handlers, health
from rljob_operator.api import Api, ApiError, KubernetesApi, connect
from rljob_operator.lease import Lease, LeaseLost
from rljob_operator.queue import Queue
from rljob_operator.reconcile import Reconciler

log = logging.getLogger(__name__)

RESYNC = 20.0
"""Seconds between looks at every job, in case a watch missed something."""
RESYNC_AFTER_FAILURE = 1.0
"""Seconds until the next look when the API server refused this one."""


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
    parser.add_argument("--health-port", type=int, default=8080, help="port of /healthz")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser.parse_args()


async def operate(args: argparse.Namespace) -> None:
    """The lease comes first: nobody acts without it."""
    connection = await connect()
    api = KubernetesApi(connection)
    pulse = health.Pulse()
    queue = Queue(Reconciler(api, args.progress_interval))
    server = await health.serve(args.health_port, lambda: pulse.trouble(queue.lag()))
    lease = Lease(api, args.lease_namespace, args.identity, pulse.beat)
    try:
        await lease.acquire()
        log.info("%s holds the lease", args.identity)
        await _until_told(args, api, queue, pulse, lease)
        await lease.release()
    finally:
        await server.cleanup()
        await connection.close()


async def _until_told(args: argparse.Namespace, api: Api, queue: Queue, pulse: health.Pulse, lease: Lease) -> None:
    """kopf returns at SIGTERM and takes the others along; if one of those fails, it takes kopf along."""
    async with asyncio.TaskGroup() as group:
        others = [
            group.create_task(lease.renew()),
            group.create_task(queue.run()),
            group.create_task(_resync_for_ever(api, args.namespace, queue, pulse)),
        ]
        await kopf.operator(
            registry=handlers.registry(queue),
            settings=handlers.settings(),
            namespaces=args.namespace,
            clusterwide=not args.namespace,
        )
        for task in others:
            task.cancel()


async def _resync_for_ever(api: Api, namespaces: list[str], queue: Queue, pulse: health.Pulse) -> None:
    """Now, and ever again. An API server that is not ready is asked again soon: liveness gives up on us if that lasts."""
    while True:
        try:
            await _resync(api, namespaces, queue, pulse)
        except ApiError as error:
            log.warning("jobs cannot be listed: %s", error)
            await asyncio.sleep(RESYNC_AFTER_FAILURE)
        else:
            await asyncio.sleep(RESYNC)


async def _resync(api: Api, namespaces: list[str], queue: Queue, pulse: health.Pulse) -> None:
    scopes: list[str | None] = [*namespaces] or [None]
    for namespace in scopes:
        for job in await api.find("RLJob", namespace):
            queue.add((job["metadata"]["namespace"], job["metadata"]["name"]))
    pulse.beat()


def main() -> None:
    args = arguments()
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kopf.activities").setLevel(logging.WARNING)
    try:
        asyncio.run(operate(args))
    except* LeaseLost as lost:
        sys.exit(f"{lost.exceptions[0]}; another operator may act now")


if __name__ == "__main__":
    main()
