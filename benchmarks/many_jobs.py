"""Memory and reconciles of an operator with very many running jobs, without a server: their objects are copies of those of one job that runs.

    PYTHONPATH=tests python -m benchmarks.many_jobs [--jobs 1000] [--trainers 9] [--nodes 250] [--rounds 3]

One job of so many trainers and a rollout runs in the simulated cluster. Copies of all of its objects, with names and uids of their own, enter the
operator's cache by its own handlers, as after a list. Then rank 0 of each job reports a step in each round, and each job is reconciled and its status
written. Prints JSON: resident memory before and after, and the seconds of a reconcile. The API server's answers take no time and no memory.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from statistics import median, quantiles
from typing import Any

from benchmarks.soak import resident
from rljob_api import names
from rljob_api.protocol import Report
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Listing, NotFound, Object
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch.events import SELECTORS, EventHandlers
from simulator.objects import node_object
from simulator.world import NAMESPACE, World

Seconds = tuple[float, float]
"""Of a clock on the wall, and of the processor."""
WRITES_ONLY = ("create", "apply", "merge", "patch", "delete")


class Server:
    """Answers writes of status with the object in its next version. Nothing else is asked for a job that runs."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.asked = list[str]()

    def bump(self, obj: Object) -> Object:
        self.version += 1
        return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.version)}}

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        return self.bump(obj)

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        raise NotFound(404, f"{kind} {name}")

    async def pages(self, kind: str, *_: Any) -> AsyncIterator[Listing]:
        yield Listing(str(self.version), [])

    def __getattr__(self, verb: str) -> Any:
        async def write(*given: Any, **_: Any) -> Object:
            self.asked.append(f"{verb} {given[0].get('kind') if isinstance(given[0], dict) else given[0]}")
            return self.bump(given[0]) if isinstance(given[0], dict) else {}

        if verb not in WRITES_ONLY:
            raise AttributeError(verb)
        return write


async def one_job(trainers: int) -> World:
    """A job whose attempt has run for a while."""
    world = World(steps=10**6, save_every=5)
    world.apply(trainer={"device": "cpu", "nodes": trainers}, scheduling={"backend": "builtin"})
    await world.until(state="Running", step=40)
    return world


def copies(world: World, number: int, nodes: int) -> Iterator[Object]:
    """The job's objects, as those of another job on one of so many nodes."""
    uids = {obj["metadata"]["uid"] for obj in world.cluster.objects.values()}
    for (kind, namespace, _), obj in world.cluster.objects.items():
        if kind in SELECTORS and namespace:
            text = json.dumps(obj)
            for uid in uids:
                text = text.replace(f'{uid}"', f'{uid}-{number}"').replace(f'{uid}\\"', f'{uid}-{number}\\"')
            text = text.replace("demo", f"j{number}").replace("node-1", f"node-{number % nodes}")
            yield json.loads(text)


def step(report: Object) -> Object:
    """The report after one more step."""
    found = Report.model_validate_json(report["data"][names.REPORT_KEY])
    if found.progress is None:
        return report
    news = {"step": found.progress.step + 1, "heartbeat": found.progress.heartbeat + 1}
    found = found.model_copy(update={"progress": found.progress.model_copy(update=news)})
    return report | {"data": {names.REPORT_KEY: found.dump_json()}}


async def measure(jobs: int, trainers: int, nodes: int, rounds: int) -> dict[str, Any]:
    world = await one_job(trainers)
    before, server = resident(), Server(world.cluster.version)
    cache = ClusterCache(lambda: world.now)
    handlers = EventHandlers(cache, lambda key, after: None, 0.0)
    for i in range(nodes):
        handlers.handle(
            "Node",
            server.bump(node_object(True, name=f"node-{i}") | {"metadata": {"name": f"node-{i}", "uid": f"n{i}"}}),
        )
    reports = list[Object]()
    for number in range(jobs):
        for obj in copies(world, number, nodes):
            handlers.handle(obj["kind"], server.bump(obj))
            if obj["metadata"]["name"] == f"j{number}-trainer-0-report":
                reports.append(obj)
    operator = Reconciler(server, cache, 0.0, clock=lambda: world.now, timer=lambda: world.now)
    seconds = list[Seconds]()
    for _ in range(rounds):
        world.now, reports = world.now + 30.0, [step(report) for report in reports]
        for number, report in enumerate(reports):
            handlers.handle("ConfigMap", server.bump(report))
            start = time.perf_counter(), time.process_time()
            await operator((NAMESPACE, f"j{number}"))
            seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    gc.collect()
    states = [job.object["status"]["state"] for job in cache.jobs.values()]
    return {
        "jobs": jobs,
        "pods": len(cache.pods.values()),
        "running": states.count("Running"),
        "residentMiB": [before, resident()],
        "reconcileMs": milliseconds([wall for wall, _ in seconds]),
        "cpuMs": milliseconds([cpu for _, cpu in seconds]),
        "otherWrites": len(server.asked),
    }


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    return {"p50": round(median(seconds) * 1000, 1), "p99": round(quantiles(seconds, n=100)[98] * 1000, 1)}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.many_jobs", description=__doc__)
    for name, default in (("jobs", 1000), ("trainers", 9), ("nodes", 250), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(json.dumps(asyncio.run(measure(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
