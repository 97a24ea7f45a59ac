"""Load on a real kube-apiserver, controller manager and scheduler with KWOK's nodes, and what we cost: each figure beside plain StatefulSets.

    python -m benchmarks.scale [gang] [roles] [servers] [crowd] [live] [--nodes 200] [--gang 64] [--crowd 100] [--live 500] [--window 60]
                               [--tree DIRECTORY]

Prints a Markdown table. Needs what `make cluster-up` compiles, and compiles KWOK. No cluster is touched: all of it runs on loopback.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import kopf

from benchmarks.load import Object, Reports, job, stateful_set
from e2e import kwok
from e2e.cluster.binaries import KWOK, build, is_built
from e2e.cluster.steps import REPOSITORY
from e2e.control_plane import TOKEN, ControlPlane, free_ports
from rljob_operator.cache.cluster import CHILD_KINDS
from rljob_operator.kube.api import NotFound, path
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials
from rljob_operator.watch.events import OURS

PAUSE_SECONDS = 4
"""The pause that follows each run lets the request budgets of the controllers fill again: 30 requests, and 20 more a second."""
Phase = Callable[["Bench"], Awaitable[None]]
SMALL = {"trainer": 3, "rollout": 1}
"""A job of four pods."""
LARGE = {"trainer": 16, "critic": 8, "reference": 4, "rollout": 8}
"""A job of PPO whose models have gangs of their own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "phases", nargs="*", help="what is measured: gang, roles, servers, crowd, live. Otherwise all of them"
    )
    for name, default in (("nodes", 200), ("gang", 64), ("crowd", 100), ("live", 500), ("window", 60), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--tree",
        type=Path,
        default=REPOSITORY,
        help="whose operator is measured: a work tree, perhaps of another commit",
    )
    args = parser.parse_args()
    if not is_built(KWOK):
        build(KWOK)
    directory = Path(tempfile.mkdtemp(prefix="rljob-scale-"))
    print("| what | plain StatefulSets | RLJob | ratio |\n| --- | --- | --- | --- |", flush=True)
    for qps, known in ((None, (Bench.gang, Bench.roles, Bench.servers)), (500, (Bench.crowd, Bench.live))):
        phases = [phase for phase in known if not args.phases or phase.__name__ in args.phases]
        if not phases:
            continue
        with ControlPlane(directory / str(qps), managers=True, qps=qps) as plane:
            plane.install_crd(args.tree / "crds" / "rljob.yaml")
            asyncio.run(measure(plane, args, phases))
    shutil.rmtree(directory, ignore_errors=True)


async def measure(plane: ControlPlane, args: argparse.Namespace, phases: Sequence[Phase]) -> None:
    """A job goes before, because the garbage collector looks for kinds that are new to it every 30 s only."""
    bench = Bench(plane, args)
    try:
        await bench.start()
        await bench.timed("first", sum(SMALL.values()), [job("first", "first", SMALL, "1")])
        for phase in phases:
            await phase(bench)
    finally:
        await bench.end()


class Seconds(NamedTuple):
    """Of one crowd."""

    bound: float
    """Until all pods are bound."""
    first: float
    """Until the first pod is made."""
    gone: float
    """From the first deletion until nothing is left."""
    processor: float
    """Processor time of all components until all pods are bound, which other work on the machine changes little."""


class Bench:
    """One run."""

    stages: tuple[Path, ...] = ()
    """Of pods, for KWOK."""

    def __init__(self, plane: ControlPlane, args: argparse.Namespace) -> None:
        self.plane, self.args = plane, args
        account = kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)
        self.credentials = Credentials(lambda: account)
        self.api = KubernetesApi(self.credentials, RateLimiter(5000, 5000))
        (self.port,) = free_ports(1)

    async def start(self) -> None:
        await self.nodes()
        kwok.start(self.plane, self.stages)
        command = [sys.executable, "-m", "rljob_operator", "--qps", "500", "--burst", "500"]
        os.environ |= {"KUBECONFIG": str(self.plane.kubeconfig), "PYTHONPATH": str(self.args.tree / "operator")}
        self.operator = self.plane.spawn("operator", *command, "--health-port", str(self.port))
        while "all kinds are listed" not in (self.plane.directory / "operator.log").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def end(self) -> None:
        await self.api.close()

    async def gang(self) -> None:
        pods = self.args.gang
        await self.compare(f"one gang of {pods} pods bound", 1, [pods], {"trainer": pods - 4, "rollout": 4})

    async def roles(self) -> None:
        """Against as many plain sets as the job has."""
        sizes = ", ".join(f"{role} {pods}" for role, pods in LARGE.items())
        await self.compare(f"one job of {sizes} bound", 1, [*LARGE.values()], LARGE)

    async def servers(self) -> None:
        """32 of four pods each beside a gang, placed by topology."""
        pods, count, nodes = self.args.gang, 32, 4
        what = f"{count} servers of {nodes} pods beside a gang of {pods} bound"
        await self.compare(what, 1, [pods, count * nodes], {"trainer": pods, "rollout": count}, nodes)

    async def crowd(self) -> None:
        await self.compare(f"{self.args.crowd} jobs of 4 pods bound", self.args.crowd, [4], SMALL)

    async def nodes(self) -> None:
        for i in range(self.args.nodes):
            node = kwok.node(f"n{i}", {"block": f"b{i // 50}", "rack": f"r{i // 10}"})
            await self.api._request("POST", "Node", "/api/v1/nodes", node)

    async def compare(self, what: str, count: int, sets: Sequence[int], roles: dict[str, int], nodes: int = 1) -> None:
        """`count` jobs, whose rollouts have so many `nodes`, and as many times plain sets of so many pods, in turn, each time in a namespace of its
        own: the medians, and the range of the ratio of neighbours."""
        floors, ours, total = list[Seconds](), list[Seconds](), count * sum(sets)
        before, cpu = self.requests(), spent(self.operator.pid)
        for i in range(self.args.repeats):
            plain = [
                stateful_set(f"floor-{total}-{i}", f"s{k}-{n}", pods)
                for k in range(count)
                for n, pods in enumerate(sets)
            ]
            floors.append(await self.timed(f"floor-{total}-{i}", total, plain))
            jobs = [job(f"ours-{total}-{i}", f"j{k}", roles, "1", nodes) for k in range(count)]
            ours.append(await self.timed(f"ours-{total}-{i}", total, jobs))
        made = Counter(self.requests())
        made.subtract(before)
        for i, name in enumerate(
            (what, "the first pod is made", "all is deleted", "processor time until all are bound")
        ):
            floor, one = [x[i] for x in floors], [x[i] for x in ours]
            ratios = [b / a for a, b in zip(floor, one, strict=True)]
            spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"| {name} | {median(floor):.2f} s | {median(one):.2f} s | {spread} |")
        print(
            f"| operator's processor time a job | | {(spent(self.operator.pid) - cpu) / count / self.args.repeats * 1000:.0f} ms | |"
        )
        self.tell_requests(made, count * self.args.repeats)

    def tell_requests(self, made: Counter[str], jobs: int) -> None:
        each = {name: n / jobs for name, n in made.most_common() if "Lease" not in name and n > 0}
        passes = each.pop("passes")
        print(f"| passes a job | | {passes:.1f} | |")
        print(
            f"| requests a job | | {sum(each.values()):.1f} | {', '.join(f'{k} {v:.1f}' for k, v in each.items())} |",
            flush=True,
        )

    async def timed(self, namespace: str, pods: int, objects: Sequence[Object]) -> Seconds:
        """From the first request. The namespace is emptied afterwards."""
        await self.api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        version = (await self.api.listing("Pod", namespace)).version
        start, before = time.monotonic(), sum(map(spent, self.plane.pids()))
        async with asyncio.timeout(300):
            bound = asyncio.create_task(self.bound(namespace, pods, version))
            await asyncio.gather(*(self.api.create(obj) for obj in objects))
            first = await bound
        end, processor = time.monotonic(), sum(map(spent, self.plane.pids())) - before
        await self.empty(namespace)
        gone = time.monotonic()
        await asyncio.sleep(PAUSE_SECONDS)
        return Seconds(end - start, first - start, gone - end, processor)

    async def bound(self, namespace: str, pods: int, version: str) -> float:
        """Until so many pods are bound, as a watch shows them; when the first was made."""
        names_, first = set[str](), 0.0
        query = {"watch": "1", "resourceVersion": version}
        url = self.plane.url + path("Pod", namespace)
        async with self.credentials.session(1) as session:
            while True:  # the server ends the watch of a client that reads too slowly
                async with session.get(url, params=query) as response:
                    async for line in response.content:
                        pod = json.loads(line)["object"]
                        query["resourceVersion"] = pod["metadata"]["resourceVersion"]
                        first = first or time.monotonic()
                        if pod.get("spec", {}).get("nodeName"):
                            names_.add(pod["metadata"]["name"])
                        if len(names_) == pods:
                            return first

    async def empty(self, namespace: str) -> None:
        for kind in ("RLJob", "StatefulSet"):
            for obj in (await self.api.listing(kind, namespace)).objects:
                with suppress(NotFound):  # the garbage collector was faster
                    await self.api.delete(kind, namespace, obj["metadata"]["name"], obj["metadata"]["uid"])
        # otherwise the garbage collector would go on beside the next run
        for kind in ("Pod", "ConfigMap", *CHILD_KINDS):
            selector = "" if kind == "Pod" else OURS
            while await self.holds(kind, namespace, selector):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    async def holds(self, kind: str, namespace: str, selector: str) -> bool:
        """Whether a namespace has such an object. Lists of all of them would take the API server from their deletion."""
        query = {"limit": "1", "labelSelector": selector}
        return bool((await self.api._request("GET", kind, path(kind, namespace), query=query))["items"])

    async def live(self) -> None:
        """Jobs whose attempts are open: first nothing moves, then every rank 0 sends a heartbeat every 15 s."""
        count, namespace = self.args.live, "live"
        before = self.requests()
        await self.api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for i in range(count):
            await self.api.create(job(namespace, f"j{i}", SMALL, "0"))
        reports = Reports(self.api, namespace)
        while len(await reports.answer()) < count:  # noqa: ASYNC110
            await asyncio.sleep(1)
        made = Counter(self.requests())
        made.subtract(before)
        self.tell_requests(made, count)
        await asyncio.sleep(45)  # the last numbers that were reported are looked at after the progress interval
        idle = await self.cpu(asyncio.sleep(self.args.window))
        busy = await self.cpu(reports.beat_for(self.args.window))
        print(f"| CPU, {count} jobs, nothing moves | | {idle:.1%} of a core | |")
        print(f"| CPU, {count} running jobs with heartbeats | | {busy:.1%} of a core | |")
        print(f"| resident memory, {count} jobs | | {resident(self.operator.pid)} MiB | |")
        for q in (0.5, 0.99):
            print(f"| reconcile, p{q * 100:.0f} | | below {self.quantile(q) * 1000:g} ms | |", flush=True)

    async def cpu(self, meanwhile: Awaitable[None]) -> float:
        before, start = spent(self.operator.pid), time.monotonic()
        await meanwhile
        return (spent(self.operator.pid) - before) / (time.monotonic() - start)

    def metrics(self) -> str:
        return subprocess.run(
            ["curl", "-s", f"http://127.0.0.1:{self.port}/metrics"], check=True, capture_output=True, text=True
        ).stdout

    def requests(self) -> dict[str, float]:
        """The operator's, by verb and kind."""
        text = self.metrics()
        passes = float(re.findall(r"^rljob_reconcile_seconds_count (\S+)$", text, re.MULTILINE)[0])
        found = re.findall(r'^rljob_api_requests_total\{kind="(.+)",verb="(.+)"\} (\S+)$', text, re.MULTILINE)
        return {"passes": passes} | {f"{verb} {kind}": float(count) for kind, verb, count in found}

    def quantile(self, q: float) -> float:
        """The upper edge of its bucket."""
        buckets = re.findall(r'^rljob_reconcile_seconds_bucket\{le="(.+)"\} (\S+)$', self.metrics(), re.MULTILINE)
        return next(float(edge) for edge, n in buckets if float(n) >= q * float(buckets[-1][1]))


def spent(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
