"""Processor time of the operator for jobs that start, that run, and that stand still, next to that of another commit. In memory, without a server.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.running_jobs [--against /tmp/before] [--jobs 100] [--idle 500] [--seconds 300] [--repeats 3]

Seconds are simulated. Jobs of four pods start; then the first `jobs` of them send progress every 15 s, and the others nothing. Every event goes
through the operator's own handlers and every key that becomes due through its own passes, in a process for each commit, in turns. The API server in
memory is each commit's own, and its time does not count; nor does what kopf needs for an event, nor the collection of garbage, most of which that
server makes. Prints JSON: medians of milliseconds a job and of shares of a core, and their ratios to the other commit.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import subprocess
import sys
import time
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from statistics import median
from typing import Any

from api.specs import raw_spec
from rljob_api import names
from rljob_api.protocol import Control, Progress, Report
from rljob_operator.cache.cluster import CAPACITY, ClusterCache
from rljob_operator.kube.api import Key, Object
from rljob_operator.reconcile.reconciler import Reconciler
from rljob_operator.watch.events import SELECTORS, EventHandlers
from simulator.cluster import FakeCluster
from simulator.controllers import sync_stateful_sets
from simulator.objects import copied, job_object, node_object

REPOSITORY = Path(__file__).parents[1]
HEARTBEAT_SECONDS = 15
NAMESPACE = "research"
NODES, PODS_OF_NODE = 60, 100
NODE_SECONDS = 5
START_SECONDS = 30
SIZES = {"trainer": {"device": "cpu", "nodes": 3}, "rollout": {"replicas": 1, "sampling": {"maxTokens": 8}}}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.running_jobs")
    parser.add_argument("--against", type=Path, help="work tree of another commit")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--idle", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="measure the commit on PYTHONPATH, once")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(asyncio.run(measured(options))))
        return
    trees = {"now": REPOSITORY} | ({"before": options.against} if options.against else {})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(options.repeats):
        for name, tree in trees.items():
            found[name].append(_in_tree(tree, options))
    figures = {name: {key: median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()}
    ratios = (
        {key: round(figures["now"][key] / figures["before"][key], 3) for key in figures["now"]}
        if options.against
        else {}
    )
    print(json.dumps(figures | {"ratio": ratios}, indent=2))


def _in_tree(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    paths = os.pathsep.join(str(tree / part) for part in ("operator", "trainer", "tests"))
    sizes = [f"--{name}={getattr(options, name)}" for name in ("jobs", "idle", "seconds")]
    command = [sys.executable, "-m", "benchmarks.running_jobs", "--alone", *sizes]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


async def measured(options: argparse.Namespace) -> dict[str, float]:
    gc.disable()  # most garbage is the API server's
    site = Running()
    count = options.jobs + options.idle
    for i in range(count):
        site.submit(f"job-{i}")
    for _ in range(START_SECONDS):
        await site.second(beating=0)
    assert site.running() == count, f"{site.running()} of {count} run"
    started, site.spent = site.spent, 0.0
    for _ in range(options.seconds):
        await site.second(beating=0)
    idle, site.spent = site.spent, 0.0
    for _ in range(options.seconds):
        await site.second(beating=options.jobs)
    return {
        "start_ms_a_job": 1000 * started / count,
        "nothing_moves_share": idle / options.seconds,
        "some_run_share": site.spent / options.seconds,
    }


class Running:
    """A cluster in memory, its operator behind a queue, and launchers that report."""

    def __init__(self) -> None:

        self.now, self.spent, self._due = 1_000_000.0, 0.0, dict[Key, float]()
        self._sent, self._reports, self._beat = dict[Any, str](), dict[str, Report](), 0
        self.cluster = FakeCluster()
        for i in range(NODES):
            self.cluster.put(node_object(True, name=f"n{i}", pods=PODS_OF_NODE))
        cache = ClusterCache(lambda: self.now)
        self._handlers = EventHandlers(cache, self._enqueue, 30.0)
        self._operator = Reconciler(
            _Untimed(self.cluster, self), cache, 30.0, clock=lambda: self.now, timer=lambda: self.now
        )

    def _enqueue(self, key: Key, after: float) -> None:
        self._due[key] = min(self.now + after, self._due.get(key, math.inf))

    def submit(self, name: str) -> None:

        self.cluster.put(job_object(name, raw_spec(**SIZES, scheduling={"backend": "builtin"})))

    def running(self) -> int:
        jobs = [obj for (kind, _, _), obj in self.cluster.objects.items() if kind == "RLJob"]
        return sum((job.get("status") or {}).get("state") == "Running" for job in jobs)

    async def second(self, beating: int) -> None:

        self.now += 1
        if self.now % NODE_SECONDS == 0:  # each kubelet writes its node's status every five minutes
            self.cluster.touch(self.cluster.objects["Node", None, f"n{int(self.now / NODE_SECONDS) % NODES}"])
        self._deliver()
        await self._work()
        if self._due or not self._reports or beating:
            sync_stateful_sets(self.cluster)
            self._report(beating)

    def _deliver(self) -> None:
        """All objects that have changed."""
        news = [
            copied(obj)
            for key, obj in self.cluster.objects.items()
            if key[0] in SELECTORS and self._sent.get(key) != obj["metadata"]["resourceVersion"]
        ]
        self._sent |= {
            (obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]): obj["metadata"]["resourceVersion"]
            for obj in news
        }
        began = time.process_time()
        for obj in news:
            self._handlers.handle(obj["kind"], obj)
        self.spent += time.process_time() - began

    async def _work(self) -> None:

        for key in [key for key, at in self._due.items() if at <= self.now]:
            del self._due[key]
            if key == CAPACITY:
                continue
            began = time.process_time()
            after = await self._operator(key)
            self.spent += time.process_time() - began
            if after is not None:
                self._enqueue(key, after)

    def _report(self, beating: int) -> None:
        """What launchers of trainers say: their boot, then that the attempt runs, and rank 0 of the first `beating` jobs its progress."""
        self._beat += 1
        beats = self._beat % HEARTBEAT_SECONDS == 0
        for pod in self.cluster.pods(NAMESPACE):
            name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
            if labels[names.LABEL_ROLE] == names.ROLE_TRAINER and pod["status"].get("phase") == "Running":
                job, old = labels[names.LABEL_JOB], self._reports.get(name)
                new = self._started(job, old) if old else _first(pod)
                if beats and new.progress and int(job.rpartition("-")[2]) < beating:
                    new = _next_step(new, new.progress)
                if new != old:
                    self._reports[name] = new
                    stored = self.cluster.edit("ConfigMap", NAMESPACE, names.report(name))
                    stored["data"] = {names.REPORT_KEY: new.dump_json()}

    def _started(self, job: str, report: Report) -> Report:
        """The report, once the job's control message has its boot."""
        stored = self.cluster.objects.get(("ConfigMap", NAMESPACE, names.control(job)))
        if report.state != "idle" or stored is None:
            return report
        control = Control.model_validate_json(stored["data"][names.CONTROL_KEY])
        if not control.attempt or control.member(report.boot_id) is None:
            return report
        progress = (
            Progress(phase="training", started_from=0, step=1, steps=10**6) if report.pod.endswith("-0") else None
        )
        return report.model_copy(update={"attempt": control.attempt, "state": "running", "progress": progress})


def _first(pod: Object) -> Report:
    meta = pod["metadata"]
    return Report(pod=meta["name"], pod_uid=meta["uid"], boot_id=f"boot-of-{meta['uid']}")


def _next_step(report: Report, progress: Progress) -> Report:
    news = {"step": progress.step + 1, "heartbeat": progress.heartbeat + 1}
    return report.model_copy(update={"progress": progress.model_copy(update=news)})


class _Untimed:
    """An API server whose time is not the operator's."""

    def __init__(self, cluster: FakeCluster, site: Running) -> None:
        self._cluster, self._site = cluster, site

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)
        if not asyncio.iscoroutinefunction(method):
            return method
        return lambda *arguments, **named: _untimed(self._site, method(*arguments, **named))


@types.coroutine
def _untimed(site: Running, request: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Takes off what the request itself computes, and nothing of what others do while it waits."""
    while True:
        began = time.process_time()
        try:
            waits = request.send(None)
        except StopIteration as end:
            return end.value
        finally:
            site.spent -= time.process_time() - began
        yield waits


if __name__ == "__main__":
    main()
