"""What running jobs cost the operator: resident memory, and processor time while nothing moves and while every rank 0 sends heartbeats.

    python -m benchmarks.live [--jobs 500] [--trainers 3] [--nodes 200] [--window 60] [--windows 12] [--tree DIRECTORY]

A real kube-apiserver on loopback with KWOK's nodes and kubelets. What StatefulSet controller and scheduler would write is written from here, so that
two cores are enough: the figures are of the operator's process alone. While nothing moves it is measured in several windows, each with what it did
there; within ten minutes it lists everything once. Prints a Markdown table.
"""

import argparse
import asyncio
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from statistics import fmean, median

from benchmarks.load import SPREAD_SECONDS, Object, Reports, job, together
from benchmarks.scale import Bench, spent
from e2e.cluster.binaries import KWOK, build, is_built
from e2e.cluster.steps import REPOSITORY
from e2e.control_plane import ControlPlane
from rljob_operator.kube.client import KubernetesApi

STEP = 100
PROGRESS_SECONDS = 45.0
"""After the progress interval the last numbers that were reported are looked at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--jobs", 500), ("--trainers", 3), ("--nodes", 200), ("--window", 60), ("--windows", 12)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="whose operator is measured")
    args = parser.parse_args()
    if not is_built(KWOK):
        build(KWOK)
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory)) as plane:
        plane.install_crd(args.tree / "crds" / "rljob.yaml")
        asyncio.run(measure(plane, args))


async def measure(plane: ControlPlane, args: argparse.Namespace) -> None:
    bench = Bench(plane, args)
    await bench.start()
    pid = bench.operator.pid
    load = Load(bench, args.trainers)
    for jobs in [*range(STEP, args.jobs, STEP), args.jobs]:
        await load.grow(jobs)
        print(f"| resident, {jobs} jobs | | {memory(pid, 'VmRSS')} MiB | |", flush=True)
    await asyncio.sleep(PROGRESS_SECONDS)
    idle = [await window(bench, i, args.window) for i in range(args.windows)]
    figures = f"median {median(idle):.2%}, mean {fmean(idle):.2%}, at most {max(idle):.2%} of a core"
    print(f"| CPU, {args.jobs} jobs, nothing moves, {args.windows} times {args.window} s | | {figures} | |", flush=True)
    before = reconciles(bench.metrics())
    busy = await share(pid, load.beat_for(args.window))
    after = reconciles(bench.metrics())
    print(f"| CPU, {args.jobs} running jobs with heartbeats | | {busy:.1%} of a core | {load.written} heartbeats |")
    print(f"| resident after that, at most | | {memory(pid, 'VmRSS')} MiB, {memory(pid, 'VmHWM')} MiB | |")
    for when, counts in (("since the start", after), ("with heartbeats", after - before)):
        if not counts:
            continue
        figures = ", ".join(f"p{q * 100:.0f} below {quantile(counts, q) * 1000:g} ms" for q in (0.5, 0.99))
        print(f"| reconcile {when} | | {figures} | {max(counts.values())} reconciles |", flush=True)
    await bench.end()


async def window(bench: Bench, number: int, seconds: int) -> float:
    """The share of a core, and what the operator did."""
    before = Counter(bench.requests() | watch_events(bench.metrics()))
    idle = await share(bench.operator.pid, asyncio.sleep(seconds))
    did = Counter(bench.requests() | watch_events(bench.metrics()))
    did.subtract(before)
    what = ", ".join(f"{name} {n:.0f}" for name, n in did.most_common() if n)
    print(f"| CPU, window {number + 1} | | {idle:.2%} of a core | {what} |", flush=True)
    return idle


class Load:
    """Jobs whose attempts run, each of so many trainers and a rollout. Those that come together have a namespace of their own, so that the next do
    not cost more to look after."""

    def __init__(self, bench: Bench, trainers: int) -> None:
        self._roles = {"trainer": trainers, "rollout": 1}
        self._api, self._jobs = bench.api, 0
        self._reports = list[Reports]()

    @property
    def written(self) -> int:
        """Heartbeats."""
        return sum(reports.written for reports in self._reports)

    async def beat_for(self, seconds: float) -> None:
        """Those of each namespace between those of the others: jobs began at different moments."""
        apart = SPREAD_SECONDS / self._jobs
        await asyncio.gather(*(reports.beat_for(seconds, i * apart) for i, reports in enumerate(self._reports)))

    async def grow(self, jobs: int) -> None:
        """Until there are so many."""
        namespace, new = f"live-{jobs}", jobs - self._jobs
        await self._api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        controllers, reports = Controllers(self._api, namespace), Reports(self._api, namespace)
        if not self._jobs:
            await controllers.admit_nodes()
        await together([self._api.create(job(namespace, f"j{i}", self._roles, "0")) for i in range(new)])
        while not await controllers.have_bound(new * sum(self._roles.values())):  # noqa: ASYNC110
            await asyncio.sleep(1)
        while len(await reports.answer()) < new:  # noqa: ASYNC110
            await asyncio.sleep(1)
        self._jobs = jobs
        self._reports.append(reports)


class Controllers:
    """What the controllers of nodes and StatefulSets and the scheduler would write in a namespace."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._made = set[str]()
        self._bound = set[str]()

    async def admit_nodes(self) -> None:
        """New nodes are not ready until a controller says so."""
        for node in (await self._api.listing("Node", None)).objects:
            where, change = f"/api/v1/nodes/{node['metadata']['name']}", {"spec": {"taints": None}}
            await self._api._request("PATCH", "Node", where, change, content="application/merge-patch+json")

    async def have_bound(self, count: int) -> bool:
        """Make the pods that are missing, and bind those that have been released to their node."""
        sets = (await self._api.listing("StatefulSet", self._namespace)).objects
        new = [pod for found in sets for pod in pods_of(found) if pod["metadata"]["name"] not in self._made]
        await together([self._api.create(pod) for pod in new])
        self._made |= {pod["metadata"]["name"] for pod in new}
        pods = (await self._api.listing("Pod", self._namespace)).objects
        free = [p for p in pods if p["metadata"]["name"] not in self._bound and not p["spec"].get("schedulingGates")]
        await together([self._bind(pod) for pod in free])
        self._bound |= {pod["metadata"]["name"] for pod in free}
        return len(self._bound) == count

    async def _bind(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        where = f"/api/v1/namespaces/{self._namespace}/pods/{name}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": node_of(pod)}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self._api._request("POST", "Pod", where, body)


def pods_of(found: Object) -> list[Object]:
    """All pods of a StatefulSet."""
    template, meta = found["spec"]["template"], found["metadata"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "controller": True,
        "name": meta["name"],
        "uid": meta["uid"],
    }
    own = {"namespace": meta["namespace"], "ownerReferences": [owner]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | own | {"name": f"{meta['name']}-{i}"}}
        | {"spec": template["spec"]}
        for i in range(found["spec"]["replicas"])
    ]


def node_of(pod: Object) -> str:
    """That the operator has pinned it to."""
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (node,) = affinity["nodeSelectorTerms"][0]["matchFields"][-1]["values"]
    return str(node)


async def share(pid: int, meanwhile: Awaitable[None]) -> float:
    """Of a core that a process takes."""
    before, start = spent(pid), time.monotonic()
    await meanwhile
    return (spent(pid) - before) / (time.monotonic() - start)


def memory(pid: int, field: str) -> int:
    """MiB."""
    lines = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[field].split()[0]) // 1024


def watch_events(metrics: str) -> dict[str, float]:
    """By kind."""
    found = re.findall(r'^rljob_watch_events_total\{kind="(.+)"\} (\S+)$', metrics, re.MULTILINE)
    return {f"events of {kind}": float(count) for kind, count in found}


def reconciles(metrics: str) -> Counter[float]:
    """Those that took at most so many seconds, by the upper edges of the buckets."""
    found = re.findall(r'^rljob_reconcile_seconds_bucket\{le="(.+)"\} (\S+)$', metrics, re.MULTILINE)
    return Counter({float(edge): int(float(n)) for edge, n in found})


def quantile(counts: Counter[float], q: float) -> float:
    """Of the seconds of a reconcile: the upper edge of its bucket."""
    return min(edge for edge, n in counts.items() if n >= q * max(counts.values()))


if __name__ == "__main__":
    main()
