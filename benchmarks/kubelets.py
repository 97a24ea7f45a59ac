"""What kubelets and launchers write for the pods of jobs in one namespace of a real API server: they run, do steps, drain, and end when deleted."""

import asyncio
from contextlib import suppress
from typing import Any

from benchmarks.load import Object, together
from rljob_api import names
from rljob_api.protocol import Checkpoint, Control, Progress, Report
from rljob_operator.kube.api import NotFound
from rljob_operator.kube.client import KubernetesApi
from rljob_trainer.pod.launcher import decide

TURN_SECONDS = 0.5
MERGE = "application/merge-patch+json"


class Kubelets:
    """In each turn, all pods of a namespace do one step of what they would do by themselves."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self._maps, self._namespace = f"/api/v1/namespaces/{namespace}/configmaps", namespace
        self._running = dict[str, str]()
        """Address of each pod that runs, by uid."""
        self._reports = dict[str, Report]()
        """What each launcher of a trainer has reported last, by the pod's uid."""
        self._saved = dict[str, Checkpoint]()
        """The newest checkpoint of each job, by the job's uid."""

    async def run(self) -> None:
        while True:
            await self.turn()
            await asyncio.sleep(TURN_SECONDS)

    async def turn(self) -> None:
        pods = (await self._api.listing("Pod", self._namespace)).objects
        controls = await self._controls()
        await together([self._serve(pod, controls.get(pod["metadata"]["labels"][names.LABEL_JOB])) for pod in pods])

    async def _controls(self) -> dict[str, Control]:
        """By name of the job."""
        stored = (await self._api.listing("ConfigMap", self._namespace)).objects
        texts = [obj["data"][names.CONTROL_KEY] for obj in stored if names.CONTROL_KEY in obj.get("data", {})]
        return {control.name: control for control in map(Control.model_validate_json, texts)}

    async def _serve(self, pod: Object, control: Control | None) -> None:
        with suppress(NotFound):  # the pod or its report is gone since the list
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                await self._api.delete("Pod", self._namespace, meta["name"], meta["uid"], force=True)
            elif meta["uid"] in self._running:
                await self._report(pod, control)
            elif pod["spec"].get("nodeName"):
                await self._start(pod)

    async def _start(self, pod: Object) -> None:
        number = len(self._running) + 1
        address = f"10.1.{number // 250}.{number % 250 + 1}"
        containers = [_container(c["name"]) for c in pod["spec"]["containers"]]
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": containers}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]} | ready
        await self._api._request(
            "PATCH", "Pod", f"{self._pods}/{pod['metadata']['name']}/status", {"status": status}, content=MERGE
        )
        self._running[pod["metadata"]["uid"]] = address

    async def _report(self, pod: Object, control: Control | None) -> None:
        """As the pod's launcher, if it has one."""
        meta = pod["metadata"]
        if meta["labels"][names.LABEL_ROLE] != names.ROLE_TRAINER:
            return
        old = self._reports.get(meta["uid"])
        new = self._next(old, control) if old else _first(meta)
        if new != old:
            data = {"data": {names.REPORT_KEY: new.dump_json()}}
            await self._api._request("PATCH", "ConfigMap", f"{self._maps}/{names.report(new.pod)}", data, content=MERGE)
            self._reports[meta["uid"]] = new

    def _next(self, report: Report, control: Control | None) -> Report:
        """After one turn. A trainer that drains saves first."""
        if control is None:
            return report
        news: dict[str, Any] = {"attempt": control.attempt}
        match decide(control, report.boot_id, report.attempt, report.state == "running"):
            case "start":
                news |= {"state": "running", "result": None, "progress": self._loaded(report, control)}
            case "decline":
                news |= {"state": "stopped", "result": "stopped", "progress": None}
            case "stop":
                news = {"state": "stopped", "result": "stopped"}
            case "follow" if control.command == "drain":
                news |= {"state": "stopped", "result": "drained", "progress": self._drained(report, control)}
            case "follow":
                news |= {"progress": _stepped(report.progress)}
            case _:
                return report
        return report.model_copy(update=news)

    def _loaded(self, report: Report, control: Control) -> Progress | None:
        """Of rank 0, which starts from the newest checkpoint."""
        member = control.member(report.boot_id)
        if member is None or member.node_rank != 0:
            return None
        saved = self._saved.get(control.job_uid)
        step = saved.step if saved else 0
        return Progress(
            phase="training", started_from=step, step=step, steps=10**6, checkpoints=[saved] if saved else []
        )

    def _drained(self, report: Report, control: Control) -> Progress | None:
        progress = _stepped(report.progress)
        if progress is None:
            return None
        step = progress.step
        saved = Checkpoint(step=step, attempt=control.attempt, path=f"/data/run/global_step_{step}")
        self._saved[control.job_uid] = saved
        return progress.model_copy(update={"checkpoints": [saved]})


def _first(meta: Object) -> Report:
    return Report(pod=meta["name"], pod_uid=meta["uid"], boot_id=f"boot-{meta['uid']}")


def _stepped(progress: Progress | None) -> Progress | None:
    """After one more step; None: not rank 0."""
    if progress is None:
        return None
    return progress.model_copy(update={"step": progress.step + 1, "heartbeat": progress.heartbeat + 1})


def _container(name: str) -> Object:
    started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {"name": name, "ready": True, "restartCount": 0, "image": "none", "imageID": "none", "state": started}
