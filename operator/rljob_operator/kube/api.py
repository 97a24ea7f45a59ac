"""The part of the Kubernetes API that the operator needs, on plain dicts. client.py implements it; tests have one in memory."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_api import backends, names
from rljob_api.text import one_line

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

AGENT_SANDBOX = "extensions.agents.x-k8s.io/v1beta1"
"""Group and version of kubernetes-sigs/agent-sandbox's extensions."""
KINDS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "RLJob": (f"/apis/{names.API_VERSION}", names.PLURAL),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "SandboxClaim": (f"/apis/{AGENT_SANDBOX}", "sandboxclaims"),
    "SandboxTemplate": (f"/apis/{AGENT_SANDBOX}", "sandboxtemplates"),
    "SandboxWarmPool": (f"/apis/{AGENT_SANDBOX}", "sandboxwarmpools"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    **{str(kind): (f"/apis/{kind.group}/{kind.version}", kind.plural) for kind in backends.KINDS},
}
"""Path prefix and plural, by kind. Kinds of Kubernetes, of agent-sandbox and our own are called by their name; those of scheduler backends by name
and group, as `PodGroup.scheduling.volcano.sh`, since several groups have kinds of one name."""
OUTLASTING = ("SandboxClaim",)
"""Kinds that are deleted after what they own: until its pod has ended, no other claim gets its name."""
_COLLECTIONS = {collection: kind for kind, collection in KINDS.items()}


class ApiError(Exception):
    """The API server refused a request; code 0: it could not be reached, or did not answer with what it should."""

    def __init__(self, code: int, message: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.causes = causes
        """Field and message of each mistake in an object that was refused; with an empty field, what was said of the whole."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: the object has changed since it was read."""


class Gone(ApiError):
    """410: the version from which a watch or a list should continue is too old."""


class AlreadyExists(Conflict):
    """409: the name is taken."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a list: objects of one kind, and the resourceVersion of the whole list."""

    version: str
    objects: list[Object]


class Api(Protocol):
    """Raises nothing but ApiError. `namespace` is None for kinds without one, and in lists for all namespaces. See client.py for each method."""

    async def get(self, kind: str, namespace: str | None, name: str) -> Object: ...
    def pages(
        self, kind: str, namespace: str | None, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Listing]: ...
    async def create(self, obj: Object) -> Object: ...
    async def replace(self, obj: Object, subresource: str = "") -> Object: ...
    async def apply(self, obj: Object, live: Object) -> Object: ...
    async def merge(self, obj: Object, live: Object) -> Object: ...
    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object: ...
    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None: ...


def kind_of(obj: Object) -> str:
    """The kind of an object, as in KINDS."""
    group, _, _ = str(obj.get("apiVersion", "")).rpartition("/")
    qualified = f"{obj['kind']}.{group}"
    return qualified if qualified in KINDS else str(obj["kind"])


def path(kind: str, namespace: str | None, name: str = "") -> str:
    prefix, plural = KINDS.get(kind) or _foreign(kind)
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def _foreign(kind: str) -> tuple[str, str]:
    """Path prefix and plural of a kind that only the administrator knows, which is called RESOURCE.VERSION.GROUP as for kubectl."""
    plural, version, group = kind.split(".", 2)
    return f"/apis/{group}/{version}", plural


def resource(kind: str) -> tuple[str, str, str]:
    """Group (empty: the core group), version and plural of a kind."""
    prefix, plural = KINDS[kind]
    *group, version = prefix.split("/")[2:]
    return "/".join(group), version, plural


def scope_of(url_path: str) -> tuple[str, str | None] | None:
    """Kind and namespace of a request for a collection, by its path; None: the path is none of a collection that we know."""
    *prefix, plural = url_path.strip("/").split("/")
    namespace = prefix.pop() if prefix[-2:-1] == ["namespaces"] else None
    prefix = prefix[:-1] if namespace else prefix
    kind = _COLLECTIONS.get(("/" + "/".join(prefix), plural))
    return (kind, namespace) if kind else None


def error(status: int, what: str, answer: str) -> ApiError:
    """The exception for a failed request. `answer`: the body, a Kubernetes `Status`, or whatever a proxy in between has sent."""
    known = {404: NotFound, 410: Gone, 409: AlreadyExists if _reason(answer) == "AlreadyExists" else Conflict}
    return known.get(status, ApiError)(status, one_line(f"{what}: {answer[:2000]}"), _causes(answer))


def _reason(answer: str) -> str:
    try:
        return str(json.loads(answer)["reason"])
    except (ValueError, TypeError, LookupError):
        return ""


def _causes(answer: str) -> tuple[tuple[str, str], ...]:
    """Field and message of each cause in a `Status`; of any other text, the text."""
    try:
        status = json.loads(answer)
        causes = (status.get("details") or {}).get("causes") or [status]
        return tuple((one_line(str(c.get("field", ""))), one_line(str(c["message"])[:500])) for c in causes[:5])
    except (ValueError, TypeError, LookupError, AttributeError):
        return (("", one_line(answer[:500])),)
