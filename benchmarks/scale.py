"""Load on a real kube-apiserver, controller manager and scheduler with KWOK's nodes, and what we cost: each figure beside plain StatefulSets.

    python -m benchmarks.scale [--nodes 200] [--gang 64] [--crowd 100] [--live 500] [--window 60]

Prints a Markdown table. Needs what `make cluster-up` compiles, and compiles KWOK. No cluster is touched: all of it runs on loopback.
"""

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kubernetes.aio import client

from e2e.cluster.binaries import KWOK, build, is_built
from e2e.cluster.steps import BIN
from e2e.control_plane import TOKEN, ControlPlane, free_ports
from rljob_api import names
from rljob_api.protocol import Control, Progress, Report
from rljob_operator.client import KubernetesApi
from rljob_operator.throttle import Throttle

Object = dict[str, Any]
ROLES = (("trainer", 3), ("rollout", 1))
"""A job of four pods."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("nodes", 200), ("gang", 64), ("crowd", 100), ("live", 500), ("window", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if not is_built(KWOK):
        build(KWOK)
    directory = Path(tempfile.mkdtemp(prefix="rljob-scale-"))
    with ControlPlane(directory, managers=True) as plane:
        plane.install_crd()
        asyncio.run(measure(plane, args))
    shutil.rmtree(directory, ignore_errors=True)


async def measure(plane: ControlPlane, args: argparse.Namespace) -> None:
    await Bench(plane, args).run()


class Bench:
    """One run."""

    def __init__(self, plane: ControlPlane, args: argparse.Namespace) -> None:
        self.plane, self.args = plane, args
        settings = client.Configuration(host=plane.url)
        settings.verify_ssl, settings.api_key = False, {"BearerToken": f"Bearer {TOKEN}"}
        self.api = KubernetesApi(settings, Throttle(5000, 5000))
        (self.port,) = free_ports(1)

    async def run(self) -> None:
        await self.nodes()
        self.plane.spawn("kwok", BIN / "kwok", f"--kubeconfig={self.plane.kubeconfig}", "--manage-all-nodes=true")
        operator = self.operator()
        try:
            while "all kinds are listed" not in (self.plane.directory / "operator.log").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            print("| what | plain StatefulSets | RLJob | ratio |\n| --- | --- | --- | --- |", flush=True)
            gang, crowd = self.args.gang, self.args.crowd
            await self.beside(f"one gang of {gang} pods bound", 1, gang, {"trainer": gang - 4, "rollout": 4})
            await self.beside(f"{crowd} jobs of 4 pods bound", crowd, 4, dict(ROLES))
            await self.live(operator)
        finally:
            operator.kill()
            operator.wait()
            await self.api.close()

    def operator(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rljob_operator", "--qps", "500", "--burst", "1000"]
        with (self.plane.directory / "operator.log").open("wb") as log:
            env = os.environ | {"KUBECONFIG": str(self.plane.kubeconfig)}
            return subprocess.Popen([*command, "--health-port", str(self.port)], env=env, stdout=log, stderr=log)

    async def nodes(self) -> None:
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        for i in range(self.args.nodes):
            labels = {"block": f"b{i // 50}", "rack": f"r{i // 10}", "kubernetes.io/hostname": f"n{i}"}
            meta = {"name": f"n{i}", "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
            status = {"allocatable": allocatable, "capacity": allocatable}
            await self.api._request("POST", "Node", "/api/v1/nodes", body | {"status": status})

    async def beside(self, what: str, count: int, pods: int, roles: dict[str, int]) -> None:
        floor = await self.timed(
            "floor", count * pods, lambda ns, i: self.api.create(stateful_set(ns, f"s{i}", pods)), count
        )
        before = self.requests()
        ours = await self.timed(
            "ours", count * pods, lambda ns, i: self.api.create(job(ns, f"j{i}", roles, "1")), count
        )
        requests = (self.requests() - before) / count
        print(
            f"| {what} | {floor:.1f} s | {ours:.1f} s, {requests:.1f} requests a job | {ours / floor:.2f} |", flush=True
        )

    async def timed(self, kind: str, pods: int, make: Callable[[str, int], Awaitable[Object]], count: int) -> float:
        """Seconds from the first request until all pods are bound. The namespace is emptied afterwards."""
        namespace = f"{kind}-{pods}"
        await self.api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        start = time.monotonic()
        await asyncio.gather(*(make(namespace, i) for i in range(count)))
        while await self.bound(namespace) < pods:
            if time.monotonic() - start > 300:
                raise TimeoutError(
                    f"{await self.bound(namespace)} of {pods} pods are bound in {namespace}; see {self.plane.directory}"
                )
            await asyncio.sleep(0.1)
        seconds = time.monotonic() - start
        await self.empty(namespace)
        return seconds

    async def bound(self, namespace: str) -> int:
        return sum("nodeName" in p["spec"] for p in (await self.api.listing("Pod", namespace)).objects)

    async def empty(self, namespace: str) -> None:
        for kind in ("RLJob", "StatefulSet"):
            for obj in (await self.api.listing(kind, namespace)).objects:
                await self.api.delete(kind, namespace, obj["metadata"]["name"], obj["metadata"]["uid"])
        while (await self.api.listing("Pod", namespace)).objects:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def live(self, operator: subprocess.Popen[bytes]) -> None:
        """Jobs whose attempts are open: first nothing moves, then every rank 0 sends a heartbeat every 15 s."""
        count, namespace = self.args.live, "live"
        before = self.requests()
        await self.api._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for i in range(count):
            await self.api.create(job(namespace, f"j{i}", dict(ROLES), "0"))
        reports = Reports(self.api, namespace)
        while len(await reports.answer()) < count:  # noqa: ASYNC110
            await asyncio.sleep(1)
        print(f"| requests a job until its attempt runs | | {(self.requests() - before) / count:.1f} | |")
        await asyncio.sleep(15)
        idle = await self.cpu(operator, asyncio.sleep(self.args.window))
        busy = await self.cpu(operator, reports.beat_for(self.args.window))
        print(f"| CPU, {count} jobs, nothing moves | | {idle:.1%} of a core | |")
        print(f"| CPU, {count} running jobs with heartbeats | | {busy:.1%} of a core | |")
        print(f"| resident memory, {count} jobs | | {resident(operator.pid)} MiB | |")
        for q in (0.5, 0.99):
            print(f"| reconcile, p{q * 100:.0f} | | below {self.quantile(q) * 1000:g} ms | |", flush=True)

    async def cpu(self, operator: subprocess.Popen[bytes], meanwhile: Awaitable[None]) -> float:
        before, start = spent(operator.pid), time.monotonic()
        await meanwhile
        return (spent(operator.pid) - before) / (time.monotonic() - start)

    def metrics(self) -> str:
        return subprocess.run(
            ["curl", "-s", f"http://127.0.0.1:{self.port}/metrics"], check=True, capture_output=True, text=True
        ).stdout

    def requests(self) -> float:
        return sum(
            float(v) for v in re.findall(r"^rljob_api_requests_total\{.*\} (\S+)$", self.metrics(), re.MULTILINE)
        )

    def quantile(self, q: float) -> float:
        """The upper edge of its bucket."""
        buckets = re.findall(r'^rljob_reconcile_seconds_bucket\{le="(.+)"\} (\S+)$', self.metrics(), re.MULTILINE)
        return next(float(edge) for edge, n in buckets if float(n) >= q * float(buckets[-1][1]))


class Reports:
    """What launchers would write."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._beat = 0
        self._running: dict[str, Report] = {}

    async def answer(self) -> dict[str, Report]:
        """Report every pod once, and the open attempts; rank 0 of each, by job."""
        for pod in (await self._api.listing("Pod", self._namespace)).objects:
            meta = pod["metadata"]
            await self._write(Report(pod=meta["name"], pod_uid=meta["uid"], boot_id=f"boot-{meta['uid']}"))
        await asyncio.sleep(3)
        for stored in (await self._api.listing("ConfigMap", self._namespace)).objects:
            text = (stored.get("data") or {}).get(names.CONTROL_KEY)
            control = Control.model_validate_json(text) if text else None
            if control and control.command == "run" and control.name not in self._running:
                await self._run(control)
        return self._running

    async def _run(self, control: Control) -> None:
        for m in control.members:
            progress = Progress(phase="training", started_from=0, step=1) if m.node_rank == 0 else None
            report = Report(
                pod=m.pod,
                pod_uid=m.pod_uid,
                boot_id=m.boot_id,
                attempt=control.attempt,
                state="running",
                progress=progress,
            )
            await self._write(report)
            self._running |= {control.name: report} if progress else {}

    async def beat_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._beat += 1
            round_ends = time.monotonic() + 15
            for report in list(self._running.values()):
                assert report.progress
                progress = report.progress.model_copy(update={"beat": self._beat, "step": 1 + self._beat})
                await self._write(report.model_copy(update={"progress": progress}))
                await asyncio.sleep(13 / len(self._running))
            await asyncio.sleep(max(0.0, round_ends - time.monotonic()))

    async def _write(self, report: Report) -> None:
        where = f"/api/v1/namespaces/{self._namespace}/configmaps/{names.report(report.pod)}"
        data = {"data": {names.REPORT_KEY: report.dump_json()}}
        await self._api._request("PATCH", "ConfigMap", where, data, content="application/merge-patch+json")


def job(namespace: str, name: str, roles: dict[str, int], gpus: str) -> Object:
    """`gpus` of every pod; none: it asks for processor time only."""
    device: Object = {"device": "gpu", "processesPerNode": int(gpus)} if gpus != "0" else {"device": "cpu"}
    spec: Object = {
        "model": {"path": "/data/model", "dtype": "float32"},
        "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 16},
        "rewards": [{"rule": "exactMatch"}],
        "train": {"steps": 1000, "promptsPerStep": 4 * roles["trainer"], "samplesPerPrompt": 4},
        "trainer": device | {"nodes": roles["trainer"]},
        "rollout": {"replicas": roles["rollout"], "sampling": {"maxTokens": 8}},
        "checkpoint": {"path": "/data/run"},
        "image": "trainer:none",
        "scheduling": {"backend": "builtin", "topologyLevels": ["block", "rack"]},
    }
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}


def stateful_set(namespace: str, name: str, pods: int) -> Object:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": pods, "podManagementPolicy": "Parallel", "selector": selector, "template": template}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec | {"serviceName": name}}


def spent(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


if __name__ == "__main__":
    main()
