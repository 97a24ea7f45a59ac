"""An API server in memory, strict about what the operator relies on: uids, resourceVersions, owners, labels, canonical pods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from rljob_operator.kube.api import OUTLASTING, AlreadyExists, ApiError, Conflict, Listing, NotFound, Object, kind_of
from rljob_operator.times import stamp
from simulator.canonical import canonical
from simulator.objects import copied, merge, node_object, operate, prune

EPOCH = 1_767_225_600.0
"""When the cluster was made: 2026-01-01."""


class Crash(Exception):
    """The operator was killed right after a write."""


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
        self.refuses: Callable[[str, Object], ApiError | None] = lambda verb, obj: None
        """What a quota, a webhook or a namespace that ends says of a write of the operator, by verb and object; None: nothing."""
        self.version = 0
        self.removed: list[Object] = []
        """As their deletions show them."""
        self._applied: dict[str, Object] = {}
        """What the operator wrote last, by uid: server-side apply removes what it does not write again."""
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

    async def pages(
        self, kind: str, namespace: str | None, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Listing]:
        """One object on each."""
        found = await self.listing(kind, namespace, selector)
        wanted = [pair.split("=") for pair in fields.split(",")] if fields else []
        for obj in [o for o in found.objects if all(_field(o, path) == value for path, value in wanted)] or [None]:
            yield Listing(found.version, [obj] if obj else [])

    async def create(self, obj: Object) -> Object:
        self._asked()
        await asyncio.sleep(self.delays.get(obj["kind"], 0.0))
        self._admit("create", obj)
        if obj["kind"] == "RoleBinding":
            self._find("Role", obj["metadata"]["namespace"], obj["roleRef"]["name"])
        created = self.put(obj)
        self._applied[created["metadata"]["uid"]] = copied(obj)
        self._written("create", obj)
        return copied(created)

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        live = self._guarded(obj)
        self._admit("replace", obj)
        live[subresource or "spec"] = copied(obj[subresource or "spec"])
        return self._changed("replace", live)

    async def apply(self, obj: Object, live: Object) -> Object:
        stored = self._guarded(obj | {"metadata": obj["metadata"] | _guard(live)})
        self._admit("apply", obj, stored)
        uid, spec = stored["metadata"]["uid"], copied(stored.get("spec"))
        prune(stored, self._applied.get(uid, {}), obj)
        merge(stored, obj)
        self._applied[uid] = copied(obj)
        canonical(stored)
        if "generation" in stored["metadata"] and stored["spec"] != spec:
            stored["metadata"]["generation"] += 1
        return self._changed("apply", stored)

    async def merge(self, obj: Object, live: Object) -> Object:
        stored = self._guarded(obj | {"metadata": obj["metadata"] | _guard(live)})
        self._admit("merge", obj, stored)
        merge(stored, obj)
        return self._changed("merge", stored)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        """JSON patches of `test`, `add`, `replace` and `remove`."""
        self._asked()
        stored = self._find(kind, namespace, name)
        self._admit("patch", stored)
        for operation in operations:
            operate(stored, operation)
        if "deletionTimestamp" in stored["metadata"] and stored["metadata"].get("finalizers") == []:
            self.remove(stored)
        return self._changed("patch", stored)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        self._asked()
        live = self._find(kind, namespace, name)
        if live["metadata"]["uid"] != uid:
            raise Conflict(409, "uid mismatch")
        self._admit("delete", live)
        if kind in ("Pod", *OUTLASTING) and not force:
            live["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self.touch(live)
        else:
            self.remove(live)
        self._written("delete", live)

    def _admit(self, verb: str, obj: Object, stored: Object | None = None) -> None:
        """Raises ApiError for what is refused. `stored`: what the write would change."""
        if stored and stored.get("immutable") and "data" in obj and obj["data"] != stored.get("data"):
            raise ApiError(422, "data: Forbidden: field is immutable when `immutable` is set")
        if refusal := self.refuses(verb, obj):
            raise refusal

    def _guarded(self, obj: Object) -> Object:
        """The stored object, if it is the one that was seen."""
        self._asked()
        stored = self._find(kind_of(obj), obj["metadata"]["namespace"], obj["metadata"]["name"])
        if _guard(stored) != _guard(obj):
            raise Conflict(409, "the object has been modified")
        return stored

    def _changed(self, verb: str, stored: Object) -> Object:
        self.touch(stored)
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
        key = (kind_of(obj), meta.get("namespace"), meta["name"])
        if key in self.objects:
            raise AlreadyExists(409, f"{key} already exists")
        self.version += 1
        stored = copied(obj)
        canonical(stored)
        stored["metadata"] |= {"uid": f"{self.version:08d}-uid", "creationTimestamp": stamp(EPOCH + self.version)}
        if key[0] == "StatefulSet":
            stored["metadata"]["generation"] = 1
        self.touch(stored)
        self.objects[key] = stored
        return stored

    def edit(self, kind: str, namespace: str | None, name: str) -> Object:
        """The stored object, to be changed in place by somebody else than the operator."""
        stored = self._find(kind, namespace, name)
        self.touch(stored)
        return stored

    def pods(self, namespace: str) -> list[Object]:
        return [o for (kind, ns, _), o in self.objects.items() if kind == "Pod" and ns == namespace]

    def remove(self, obj: Object) -> None:
        meta = obj["metadata"]
        self.touch(obj)
        self.removed.append(obj)
        del self.objects[(kind_of(obj), meta.get("namespace"), meta["name"])]

    def _find(self, kind: str, namespace: str | None, name: str) -> Object:
        if (kind, namespace, name) not in self.objects:
            raise NotFound(404, f"{kind} {namespace}/{name}")
        return self.objects[(kind, namespace, name)]

    def touch(self, obj: Object) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)

    def _written(self, verb: str, obj: Object) -> None:
        self.writes.append(f"{verb} {obj['kind']} {obj['metadata']['name']}")
        if self.crash_after is not None and len(self.writes) == self.crash_after:
            self._dead = True
            raise Crash(self.writes[-1])


def _field(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key, {})
    return obj


def _guard(obj: Object) -> Object:
    return {k: obj["metadata"][k] for k in ("uid", "resourceVersion")}


class BrokenCluster(FakeCluster):
    """An API server that answers nothing."""

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        raise ApiError(0, "connection refused")
