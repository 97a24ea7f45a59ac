"""What the scale benchmark puts on a cluster: jobs, plain StatefulSets, and what the launchers of jobs would write."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from rljob_api import names
from rljob_api.protocol import Control, Progress, Report
from rljob_operator.kube.client import KubernetesApi

Object = dict[str, Any]
AT_ONCE = 50
"""Requests that are under way together."""
BEAT_SECONDS, SPREAD_SECONDS = 15.0, 13.0
"""Between two heartbeats of a job, and over which those of all jobs are spread."""


class Reports:
    """What launchers would write."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._beat = 0
        self.written = 0
        """Heartbeats."""
        self._idle = set[str]()
        self._running: dict[str, Report] = {}

    async def answer(self) -> dict[str, Report]:
        """Report every pod once, and the open attempts; rank 0 of each, by job."""
        for pod in (await self._api.listing("Pod", self._namespace)).objects:
            meta = pod["metadata"]
            if meta["uid"] in self._idle or "nodeName" not in pod["spec"]:
                continue
            self._idle.add(meta["uid"])
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

    async def beat_for(self, seconds: float, later: float = 0.0) -> None:
        """`later`: seconds until the first one."""
        await asyncio.sleep(later)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._beat += 1
            round_ends = time.monotonic() + BEAT_SECONDS
            for report in list(self._running.values()):
                assert report.progress
                progress = report.progress.model_copy(update={"heartbeat": self._beat, "step": 1 + self._beat})
                await self._write(report.model_copy(update={"progress": progress}))
                self.written += 1
                await asyncio.sleep(SPREAD_SECONDS / len(self._running))
            await asyncio.sleep(max(0.0, round_ends - time.monotonic()))

    async def _write(self, report: Report) -> None:
        where = f"/api/v1/namespaces/{self._namespace}/configmaps/{names.report(report.pod)}"
        data = {"data": {names.REPORT_KEY: report.dump_json()}}
        await self._api._request("PATCH", "ConfigMap", where, data, content="application/merge-patch+json")


def job(namespace: str, name: str, roles: dict[str, int], gpus: str, nodes: int = 1) -> Object:
    """`roles`: pods of the trainer, rollouts of so many `nodes`, and pods of gangs of further models. `gpus` of every pod; none: it asks for
    processor time only."""
    device: Object = {"device": "gpu", "processesPerNode": int(gpus)} if gpus != "0" else {"device": "cpu"}
    servers = (
        {"nodes": nodes, "tensorParallel": nodes * int(gpus), "minReplicas": roles["rollout"]} if nodes > 1 else {}
    )
    spec: Object = {
        "model": {"path": "/data/model", "dtype": "float32"},
        "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 16},
        "rewards": [{"rule": "exactMatch"}],
        "train": {"steps": 1000, "promptsPerStep": 4 * roles["trainer"], "samplesPerPrompt": 4},
        "trainer": device | {"nodes": roles["trainer"]},
        "rollout": {"replicas": roles["rollout"], "sampling": {"maxTokens": 8}} | servers,
        "checkpoint": {"path": "/data/run"},
        "image": "trainer:none",
        "scheduling": {"backend": "builtin", "topologyLevels": ["block", "rack"]},
    }
    for role in roles.keys() - {"trainer", "rollout"}:
        spec |= {role: {"nodes": roles[role], "processesPerNode": int(gpus)}}
        spec |= {"algorithm": {"advantage": "gae", "kl": {"coefficient": 0.001}}}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}


def stateful_set(namespace: str, name: str, pods: int) -> Object:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": pods, "podManagementPolicy": "Parallel", "selector": selector, "template": template}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec | {"serviceName": name}}


async def together(work: list[Awaitable[object]]) -> None:
    """A few at a time."""
    for i in range(0, len(work), AT_ONCE):
        await asyncio.gather(*work[i : i + AT_ONCE])
