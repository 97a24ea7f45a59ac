"""The little of the Kubernetes API that the operator needs, on plain dicts. Tests have an in-memory one."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_api import names
from rljob_api.text import one_line

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

KINDS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Node": ("/api/v1", "nodes"),
    "PodGroup": ("/apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    "Pod": ("/api/v1", "pods"),
    "RLJob": (f"/apis/{names.API_VERSION}", names.PLURAL),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("/api/v1", "secrets"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
}


_COLLECTIONS = {collection: kind for kind, collection in KINDS.items()}


class ApiError(Exception):
    """The API server refused, or could not be reached (code 0)."""

    def __init__(self, code: int, message: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.causes = causes
        """Field and message of each mistake in an object that was refused; with an empty field, what was said of the whole."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: something was read that is no longer so, or others write at this moment."""


class Gone(ApiError):
    """410: the version from which a watch or a list should continue is too old."""


class AlreadyExists(Conflict):
    """409: the name is taken."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of a kind at one moment, all or some, and the version of that moment."""

    version: str
    objects: list[Object]


class Api(Protocol):
    """All errors are `ApiError`s. `namespace` is None for nodes, and for all namespaces."""

    async def get(self, kind: str, namespace: str | None, name: str) -> Object: ...
    def pages(self, kind: str, namespace: str | None, selector: str = "") -> AsyncIterator[Listing]: ...
    async def create(self, obj: Object) -> Object: ...
    async def replace(self, obj: Object, subresource: str = "") -> Object: ...
    async def apply(self, obj: Object, live: Object) -> Object: ...
    async def merge(self, obj: Object, live: Object) -> Object: ...
    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object: ...
    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None: ...


def path(kind: str, namespace: str | None, name: str = "") -> str:
    prefix, plural = KINDS[kind]
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def resource(kind: str) -> tuple[str, str, str]:
    """Group (empty: the core's), version and plural."""
    prefix, plural = KINDS[kind]
    *group, version = prefix.split("/")[2:]
    return "/".join(group), version, plural


def scope_of(url_path: str) -> tuple[str, str | None] | None:
    """Kind and namespace that a request for a collection is about; None: something else."""
    *prefix, plural = url_path.strip("/").split("/")
    namespace = prefix.pop() if prefix[-2:-1] == ["namespaces"] else None
    prefix = prefix[:-1] if namespace else prefix
    kind = _COLLECTIONS.get(("/" + "/".join(prefix), plural))
    return (kind, namespace) if kind else None


def error(status: int, what: str, answer: str) -> ApiError:
    """By the `Status` that the API server, or a proxy before it, has answered with."""
    known = {404: NotFound, 410: Gone, 409: AlreadyExists if _reason(answer) == "AlreadyExists" else Conflict}
    return known.get(status, ApiError)(status, one_line(f"{what}: {answer[:2000]}"), _causes(answer))


def _reason(answer: str) -> str:
    try:
        return str(json.loads(answer)["reason"])
    except (ValueError, TypeError, LookupError):
        return ""


def _causes(answer: str) -> tuple[tuple[str, str], ...]:
    """Of a `Status`; of anything else, itself."""
    try:
        found = json.loads(answer)
        causes = (found.get("details") or {}).get("causes") or [found]
        return tuple((one_line(str(c.get("field", ""))), one_line(str(c["message"])[:500])) for c in causes[:5])
    except (ValueError, TypeError, LookupError, AttributeError):
        return (("", one_line(answer[:500])),)
