"""An API server and a StatefulSet controller in memory, strict about what the operator relies on: uids, resourceVersions, owners, labels."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from typing import Any

from rljob_api import names
from rljob_operator.kube.api import AlreadyExists, ApiError, Conflict, Listing, NotFound, Object
from rljob_operator.times import stamp

EPOCH = 1_767_225_600.0
"""When the cluster was made: 2026-01-01."""


class Crash(Exception):
    """The operator was killed right after a write."""


def copied[T](value: T) -> T:
    """As deepcopy, in half the time."""
    found: T = pickle.loads(pickle.dumps(value))
    return found


class FakeCluster:
    """Implements rljob_operator.api.Api. `crash_after`: writes that succeed before the operator is killed."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], Object] = {}
        self.writes: list[str] = []
        self.requests = 0
        self.crash_after: int | None = None
        self.delays: dict[str, float] = {}
        """Seconds that a creation takes, by kind."""
        self.full: set[str] = set()
        """Nodes onto which the scheduler puts nobody."""
        self.version = 0
        self.removed: list[Object] = []
        """As their deletions show them."""
        self._dead = False
        self.put(node_object(True))

    def revive(self) -> None:
        """A new operator may speak."""
        self._dead = False

    # The operator's side

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        assert kind != "Secret", "secrets are never read"
        self._asked()
        return copied(self._find(kind, namespace, name))

    async def listing(self, kind: str, namespace: str | None, selector: str = "") -> Listing:
        assert kind != "Secret", "secrets are never read"
        self._asked()
        wanted = dict(pair.split("=") for pair in selector.split(",")) if selector else {}
        found = [o for (k, ns, _), o in self.objects.items() if k == kind and namespace in (None, ns)]
        matching = [o for o in found if wanted.items() <= o["metadata"].get("labels", {}).items()]
        return Listing(str(self.version), copied(matching))

    async def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[Listing]:
        """One object on each."""
        found = await self.listing(kind, namespace, selector)
        for obj in found.objects or [None]:
            yield Listing(found.version, [obj] if obj else [])

    async def create(self, obj: Object) -> Object:
        self._asked()
        await asyncio.sleep(self.delays.get(obj["kind"], 0.0))
        if obj["kind"] == "RoleBinding":
            self._find("Role", obj["metadata"]["namespace"], obj["roleRef"]["name"])
        created = self.put(obj)
        self._written("create", obj)
        return copied(created)

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        live = self._guarded(obj)
        live[subresource or "spec"] = copied(obj[subresource or "spec"])
        return self._changed("replace", live)

    async def apply(self, obj: Object, live: Object) -> Object:
        stored = self._guarded(obj | {"metadata": obj["metadata"] | _guard(live)})
        _merge(stored, obj)
        return self._changed("apply", stored)

    async def merge(self, obj: Object, live: Object) -> Object:
        stored = self._guarded(obj | {"metadata": obj["metadata"] | _guard(live)})
        _merge(stored, obj)
        return self._changed("merge", stored)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        """JSON patches of `test`, `add`, `replace` and `remove`."""
        self._asked()
        stored = self._find(kind, namespace, name)
        for operation in operations:
            _operate(stored, operation)
        return self._changed("patch", stored)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        self._asked()
        live = self._find(kind, namespace, name)
        if live["metadata"]["uid"] != uid:
            raise Conflict(409, "uid mismatch")
        if kind == "Pod" and not force:
            live["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self._touch(live)
        else:
            self.remove(live)
        self._written("delete", live)

    def _guarded(self, obj: Object) -> Object:
        """The stored object, if it is the one that was seen."""
        self._asked()
        stored = self._find(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
        if _guard(stored) != _guard(obj):
            raise Conflict(409, "the object has been modified")
        return stored

    def _changed(self, verb: str, stored: Object) -> Object:
        self._touch(stored)
        self._written(verb, stored)
        return copied(stored)

    def _asked(self) -> None:
        if self._dead:
            raise Crash("killed before")
        self.requests += 1

    # The world's side

    def put(self, obj: Object) -> Object:
        """As POST: the name must be free."""
        meta = obj["metadata"]
        key = (obj["kind"], meta.get("namespace"), meta["name"])
        if key in self.objects:
            raise AlreadyExists(409, f"{key} already exists")
        self.version += 1
        stored = copied(obj)
        stored["metadata"] |= {"uid": f"{self.version:08d}-uid", "creationTimestamp": stamp(EPOCH + self.version)}
        self._touch(stored)
        self.objects[key] = stored
        return stored

    def edit(self, kind: str, namespace: str | None, name: str) -> Object:
        """The stored object, to be changed in place by somebody else than the operator."""
        stored = self._find(kind, namespace, name)
        self._touch(stored)
        return stored

    def pods(self, namespace: str) -> list[Object]:
        return [o for (kind, ns, _), o in self.objects.items() if kind == "Pod" and ns == namespace]

    def remove(self, obj: Object) -> None:
        meta = obj["metadata"]
        self._touch(obj)
        self.removed.append(obj)
        del self.objects[(obj["kind"], meta.get("namespace"), meta["name"])]

    def sync_stateful_sets(self) -> None:
        """Pods that are missing are made, and run at once unless they are gated; those that are too many go at once, as do those of a set that
        is gone (the garbage collector's work)."""
        sets = {o["metadata"]["uid"] for key, o in self.objects.items() if key[0] == "StatefulSet"}
        for key, pod in list(self.objects.items()):
            if key[0] == "Pod" and (owner := owner_of(pod)) and owner not in sets:
                self.remove(pod)
        for (kind, namespace, name), sts in list(self.objects.items()):
            if kind != "StatefulSet" or namespace is None:
                continue
            size = sts["spec"]["replicas"]
            for ordinal in range(size):
                if ("Pod", namespace, f"{name}-{ordinal}") not in self.objects:
                    self._start_pod(sts, ordinal)
            for pod in self.pods(namespace):
                ordinal = pod["metadata"]["name"].rpartition("-")[2]
                if owner_of(pod) == sts["metadata"]["uid"] and int(ordinal) >= size:
                    self.remove(pod)
        self._schedule()

    def _start_pod(self, sts: Object, ordinal: int) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
        owner |= {key: sts["metadata"][key] for key in ("name", "uid")}
        meta = {
            "name": f"{owner['name']}-{ordinal}",
            "namespace": sts["metadata"]["namespace"],
            "ownerReferences": [owner],
        }
        template = copied(sts["spec"]["template"])
        pod = self.put({"kind": "Pod", "metadata": template["metadata"] | meta, "spec": template["spec"]})
        pod["status"] = {"phase": "Pending"}

    def _schedule(self) -> None:
        """Pods that nothing holds back, onto the node that they are pinned to, if it is there and has room, else onto the first."""
        for (kind, _, _), pod in list(self.objects.items()):
            waits = pod.get("status", {}).get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]
            free = kind == "Pod" and waits and not pod["spec"].get("schedulingGates")
            node = (pod["spec"].get("nodeName") or pinned_to(pod)) if free else ""
            if free and ("Node", None, node) in self.objects and node not in self.full:
                self._run_pod(pod, node)

    def _run_pod(self, pod: Object, node: str) -> None:
        """As the kubelet: not before the Secret is there, whose value the containers keep."""
        pod["spec"]["nodeName"] = node
        name = secret_of(pod)
        secret = self.objects.get(("Secret", pod["metadata"]["namespace"], name))
        if name and secret is None:
            self._await_secret(pod, name)
            return
        self._touch(pod)
        pod["status"] = {
            "token": secret["stringData"][names.TOKEN_KEY] if secret else "",
            "phase": "Running",
            "podIP": f"10.0.0.{self.version}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": c["name"], "state": {"running": {}}} for c in pod["spec"]["containers"]],
        }

    def _await_secret(self, pod: Object, name: str) -> None:
        why = {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
        states = [{"name": c["name"], "state": {"waiting": why}} for c in pod["spec"]["containers"]]
        if pod["status"].get("containerStatuses") != states:
            self._touch(pod)
            pod["status"] = {"phase": "Pending", "containerStatuses": states}

    def _find(self, kind: str, namespace: str | None, name: str) -> Object:
        if (kind, namespace, name) not in self.objects:
            raise NotFound(404, f"{kind} {namespace}/{name}")
        return self.objects[(kind, namespace, name)]

    def _touch(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _written(self, verb: str, obj: Object) -> None:
        self.writes.append(f"{verb} {obj['kind']} {obj['metadata']['name']}")
        if self.crash_after is not None and len(self.writes) == self.crash_after:
            self._dead = True
            raise Crash(self.writes[-1])


def _guard(obj: Object) -> Object:
    return {k: obj["metadata"][k] for k in ("uid", "resourceVersion")}


def owner_of(obj: Object) -> str:
    """Uid of its controller; empty: it has none."""
    owners = obj["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o.get("controller")), "")


def secret_of(pod: Object) -> str:
    """That its environment takes a value from; empty: none."""
    env = [entry for c in pod["spec"]["containers"] for entry in c.get("env", [])]
    refs = (entry.get("valueFrom", {}).get("secretKeyRef", {}) for entry in env)
    return next((str(ref["name"]) for ref in refs if ref), "")


def pinned_to(pod: Object) -> str:
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    names_ = {value for term in terms for field in term.get("matchFields", []) for value in field["values"]}
    return names_.pop() if names_ else "node-1"


def _operate(obj: Any, operation: Object) -> None:
    """The API server answers 422 to a test that fails and to a path that leads nowhere."""
    *path, last = (part.replace("~1", "/") for part in operation["path"].strip("/").split("/"))
    try:
        for key in path:
            obj = obj[int(key)] if isinstance(obj, list) else obj[key]
        last = int(last) if isinstance(obj, list) else last
        if operation["op"] == "test" and obj[last] != operation["value"]:
            raise KeyError(last)
    except (LookupError, ValueError) as error:
        raise ApiError(422, f"{operation['op']} of {operation['path']} failed") from error
    if operation["op"] in ("add", "replace"):
        obj[last] = copied(operation["value"])
    if operation["op"] == "remove":
        del obj[last]


def node_object(ready: bool, since: str = "2026-01-01T00:00:00Z", name: str = "node-1", pods: int = 110) -> Object:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": since}
    status = {"conditions": [condition], "allocatable": {"pods": str(pods)}}
    return {"kind": "Node", "metadata": {"name": name}, "status": status}


def job_object(name: str, spec: dict[str, Any], namespace: str = "research") -> Object:
    meta = {"name": name, "namespace": namespace, "generation": 1, "annotations": {}}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta, "spec": spec}


def _merge(into: Object, new: Object) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copied(value)


class BrokenCluster(FakeCluster):
    """An API server that answers nothing."""

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        raise ApiError(0, "connection refused")
