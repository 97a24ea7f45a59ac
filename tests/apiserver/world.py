"""The simulator's world on a real API server: what kubelets, controllers and launchers would do is worked out in memory and then really written."""

import asyncio
import base64
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import kopf

from api.specs import raw_spec
from e2e.control_plane import TOKEN, ControlPlane
from rljob_api import names
from rljob_api.protocol import Control
from rljob_operator.kube.api import Conflict, NotFound, Object
from rljob_operator.kube.client import KubernetesApi, RateLimiter
from rljob_operator.kube.credentials import Credentials
from simulator.controllers import sync_stateful_sets
from simulator.objects import job_object, node_object
from simulator.world import NAMESPACE, Launcher, World

KINDS = ("RLJob", "Pod", "ConfigMap", "StatefulSet", "Secret", "Event")
TURN = 0.1
"""Seconds."""


def administrator(plane: ControlPlane) -> KubernetesApi:
    account = kopf.ConnectionInfo(server=plane.url, insecure=True, token=TOKEN)
    return KubernetesApi(Credentials(lambda: account), RateLimiter(1000, 1000))


@dataclass
class RealWorld(World):
    """The job `demo` in `namespace`. The mirror, a cluster in memory, calls that namespace by the simulator's name."""

    api: KubernetesApi | None = None
    namespace: str = ""
    finish: bool = False
    """Whether the trainers are done."""

    def restart_operator(self) -> None:
        """It is a process of its own."""

    async def prepare(self) -> None:
        assert self.api
        await self._request("POST", "Node", "/api/v1/nodes", node_object(True))
        untainted = {"spec": {"taints": None}}  # admission says not-ready, which a controller would take away
        await self._request("PATCH", "Node", "/api/v1/nodes/node-1", untainted, "application/merge-patch+json")
        await self._request("POST", "Namespace", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    async def submit(self, **changes: Any) -> None:
        changes = {"train": {"steps": 10**6}, "trainer": {"device": "cpu", "nodes": 2}} | changes
        lifecycle = {"lifecycle": {"backoffSeconds": 0}}
        await self._api.create(job_object("demo", raw_spec(**lifecycle | changes), self.namespace))

    async def turn(self) -> None:
        self.now = time.time()
        await self._pull()
        if ("RLJob", NAMESPACE, "demo") in self.cluster.objects:
            before = {o["metadata"]["uid"]: o | {"spec": dict(o["spec"])} for o in self.cluster.pods(NAMESPACE)}
            self._finish_deletions()
            sync_stateful_sets(self.cluster)
            await self._push_pods(before)
            self._boot()
            self._run()
            await self._push_readiness()
            await self._push_reports()
            self.seen += [self.status.state] if self.status.state not in self.seen[-1:] else []
        await asyncio.sleep(TURN)

    def _step(self, gang: list[Launcher], control: Control) -> None:
        super()._step(gang, control)
        for launcher in gang if self.finish else []:
            launcher.stop("succeeded")

    async def remove_child(self, kind: str, name: str) -> None:
        live = await self._api.get(kind, self.namespace, name)
        await self._api.delete(kind, self.namespace, name, live["metadata"]["uid"], force=kind == "Pod")

    async def exists(self, kind: str, name: str) -> bool:
        try:
            return bool(await self._api.get(kind, self.namespace, name))
        except NotFound:
            return False

    async def ask(self, nonce: str, action: str) -> None:
        value = {"jobUid": self.job["metadata"]["uid"], "nonce": nonce, "action": action}
        annotations = {"annotations": {names.ANNOTATION_REQUEST: json.dumps(value)}}
        await self.edit_child("RLJob", "demo", {"metadata": annotations})

    async def edit_child(self, kind: str, name: str, change: Object) -> Object:
        """Again, when the operator wrote in between: our writes are guarded by a version, and a user's are not."""
        meta = {"name": name, "namespace": self.namespace} | change.get("metadata", {})
        while True:
            live = await self._api.get(kind, self.namespace, name)
            with suppress(Conflict):
                return await self._api.merge(change | {"kind": kind, "metadata": meta}, live)

    async def bears_no_marks(self) -> None:
        """No object has a finalizer, or an annotation or a copy of its spec of kopf's."""
        for kind in (*KINDS, "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Service"):
            for obj in (await self._api.listing(kind, self.namespace)).objects:
                assert "finalizers" not in obj["metadata"], obj["metadata"]
                assert "kopf" not in json.dumps(obj), obj

    @property
    def _api(self) -> KubernetesApi:
        assert self.api
        return self.api

    async def _pull(self) -> None:
        found = [(await self._api.listing(kind, self.namespace)).objects for kind in KINDS]
        self.cluster.objects = {
            (o["kind"], NAMESPACE, o["metadata"]["name"]): o | {"metadata": o["metadata"] | {"namespace": NAMESPACE}}
            for objects in found
            for o in map(_readable, objects)
        } | {("Node", None, "node-1"): node_object(True)}

    async def _push_pods(self, before: dict[str, Object]) -> None:
        now = {o["metadata"]["uid"]: o for o in self.cluster.pods(NAMESPACE)}
        for uid in before.keys() - now.keys():
            with suppress(NotFound, Conflict):
                await self._api.delete("Pod", self.namespace, before[uid]["metadata"]["name"], uid, force=True)
        for uid in now.keys() - before.keys():
            await self._push_pod(now[uid])
        for uid in now.keys() & before.keys():
            if now[uid]["spec"].get("nodeName") and not before[uid]["spec"].get("nodeName"):
                await self._bind(now[uid])
            if _states(now[uid]) != _states(before[uid]):
                await self._push_status(now[uid])

    async def _bind(self, pod: Object) -> None:
        """As the scheduler does."""
        where = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        target = {"apiVersion": "v1", "kind": "Node", "name": pod["spec"]["nodeName"]}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": target,
        }
        await self._request("POST", "Pod", f"{where}/binding", binding)

    async def _push_pod(self, pod: Object) -> None:
        meta = {k: v for k, v in pod["metadata"].items() if k in ("name", "labels", "annotations", "ownerReferences")}
        created = await self._api.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"namespace": self.namespace}, "spec": pod["spec"]}
        )
        pod["metadata"]["uid"] = created["metadata"]["uid"]
        if _states(pod):
            await self._push_status(pod)

    async def _push_status(self, pod: Object) -> None:
        """As the kubelet does."""
        status = {k: v for k, v in pod["status"].items() if k != "token"}
        status |= {"podIPs": [{"ip": status["podIP"]}]} if "podIP" in status else {}
        more = {"ready": "podIP" in status, "image": "", "imageID": "", "restartCount": 0}
        status["containerStatuses"] = [found | more for found in status["containerStatuses"]]
        where = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        await self._request("PATCH", "Pod", where, {"status": status}, "application/merge-patch+json")

    async def _push_readiness(self) -> None:
        """Of servers of several pods, as their kubelets see it."""
        before = {p["metadata"]["uid"]: p["status"].get("conditions") for p in self.cluster.pods(NAMESPACE)}
        self._serve()
        for pod in self.cluster.pods(NAMESPACE):
            if pod["status"].get("conditions") != before[pod["metadata"]["uid"]]:
                await self._push_status(pod)

    async def _push_reports(self) -> None:
        for launcher in (*self.launchers.values(), *self.parts.values(), *self.gateways.values()):
            name, data = names.report(launcher.pod), {names.REPORT_KEY: launcher.report()}
            stored = self.cluster.objects.get(("ConfigMap", NAMESPACE, name))
            if stored is not None and stored.get("data") != data:
                where = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
                await self._request("PATCH", "ConfigMap", where, {"data": data}, "application/merge-patch+json")

    async def _request(
        self, method: str, kind: str, where: str, body: Object, content: str = "application/json"
    ) -> None:
        with suppress(Conflict, NotFound):  # the operator has deleted it meanwhile
            await self._api._request(method, kind, where, body, content=content)


def _readable(obj: Object) -> Object:
    """A Secret as it was written."""
    if obj["kind"] != "Secret":
        return obj
    return obj | {"stringData": {k: base64.b64decode(v).decode() for k, v in obj.get("data", {}).items()}}


def _states(pod: Object) -> list[Object]:
    """What its containers do."""
    return [found["state"] for found in pod.get("status", {}).get("containerStatuses", [])]
