"""An API server and a StatefulSet controller in memory, strict about what the operator relies on: uids, resourceVersions, owners, labels."""

import copy
from typing import Any

from rljob_api import names
from rljob_operator.api import ApiError, Conflict, NotFound, Object


class Crash(Exception):
    """The operator was killed right after a write."""


class FakeCluster:
    """Implements rljob_operator.api.Api. `crash_after`: writes that succeed before the operator is killed."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.nodes: dict[str, Object] = {"node-1": node_object(True)}
        self.writes: list[str] = []
        self.crash_after: int | None = None
        self._count = 0

    # The operator's side

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        assert kind != "Secret", "secrets are never read"
        return copy.deepcopy(self._find(kind, namespace, name))

    async def node(self, name: str) -> Object:
        if name not in self.nodes:
            raise NotFound(404, name)
        return self.nodes[name]

    async def find(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        assert kind != "Secret", "secrets are never read"
        wanted = dict(pair.split("=") for pair in selector.split(",")) if selector else {}
        found = [o for (k, ns, _), o in self.objects.items() if k == kind and namespace in (None, ns)]
        return copy.deepcopy([o for o in found if wanted.items() <= o["metadata"].get("labels", {}).items()])

    async def create(self, obj: Object) -> Object:
        created = self.put(obj)
        self._written("create", obj)
        return copy.deepcopy(created)

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        live = self._find(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
        if live["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Conflict(409, "the object has been modified")
        live[subresource or "spec"] = copy.deepcopy(obj[subresource or "spec"])
        self._touch(live)
        self._written("replace", obj)
        return copy.deepcopy(live)

    async def apply(self, obj: Object, live: Object) -> None:
        stored = self._find(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
        if stored["metadata"]["uid"] != live["metadata"]["uid"]:
            raise Conflict(409, "uid mismatch")
        _merge(stored, obj)
        self._touch(stored)
        self._written("apply", obj)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        pod = self._find("Pod", namespace, name)
        if pod["metadata"]["uid"] != uid:
            raise Conflict(409, "uid mismatch")
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._written("delete", pod)

    # The world's side

    def put(self, obj: Object) -> Object:
        """As POST: the name must be free."""
        meta = obj["metadata"]
        key = (obj["kind"], meta["namespace"], meta["name"])
        if key in self.objects:
            raise Conflict(409, f"{key} already exists")
        self._count += 1
        stored = copy.deepcopy(obj)
        stored["metadata"] |= {"uid": f"uid-{self._count:06d}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self._touch(stored)
        self.objects[key] = stored
        return stored

    def edit(self, kind: str, namespace: str, name: str) -> Object:
        """The stored object, to be changed in place by somebody else than the operator."""
        stored = self._find(kind, namespace, name)
        self._touch(stored)
        return stored

    def pods(self, namespace: str) -> list[Object]:
        return [o for (kind, ns, _), o in self.objects.items() if kind == "Pod" and ns == namespace]

    def remove(self, obj: Object) -> None:
        meta = obj["metadata"]
        del self.objects[(obj["kind"], meta["namespace"], meta["name"])]

    def sync_stateful_sets(self) -> None:
        """Pods that are missing are made and run at once; those that are too many go at once."""
        for (kind, namespace, name), sts in list(self.objects.items()):
            if kind != "StatefulSet":
                continue
            size = sts["spec"]["replicas"]
            for ordinal in range(size):
                if ("Pod", namespace, f"{name}-{ordinal}") not in self.objects:
                    self._start_pod(sts, ordinal)
            for pod in self.pods(namespace):
                pod_name = pod["metadata"]["name"]
                if pod_name.rsplit("-", 1)[0] == name and int(pod_name.rsplit("-", 1)[1]) >= size:
                    self.remove(pod)

    def _start_pod(self, sts: Object, ordinal: int) -> None:
        meta = {"name": f"{sts['metadata']['name']}-{ordinal}", "namespace": sts["metadata"]["namespace"]}
        template = copy.deepcopy(sts["spec"]["template"])
        pod = self.put({"kind": "Pod", "metadata": template["metadata"] | meta, "spec": template["spec"]})
        pod["spec"]["nodeName"] = "node-1"
        pod["status"] = {
            "phase": "Running",
            "podIP": f"10.0.0.{self._count}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"running": {}}}],
        }

    def _find(self, kind: str, namespace: str, name: str) -> Object:
        if (kind, namespace, name) not in self.objects:
            raise NotFound(404, f"{kind} {namespace}/{name}")
        return self.objects[(kind, namespace, name)]

    def _touch(self, obj: Object) -> None:
        self._count += 1
        obj["metadata"]["resourceVersion"] = str(self._count)

    def _written(self, verb: str, obj: Object) -> None:
        self.writes.append(f"{verb} {obj['kind']} {obj['metadata']['name']}")
        if self.crash_after is not None and len(self.writes) == self.crash_after:
            raise Crash(self.writes[-1])


def node_object(ready: bool, since: str = "2026-01-01T00:00:00Z") -> Object:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": since}
    return {"kind": "Node", "status": {"conditions": [condition]}}


def job_object(name: str, spec: dict[str, Any], namespace: str = "research") -> Object:
    meta = {"name": name, "namespace": namespace, "generation": 1, "annotations": {}}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}


def _merge(into: Object, new: Object) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


class BrokenCluster(FakeCluster):
    """An API server that answers nothing."""

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        raise ApiError(0, "connection refused")
