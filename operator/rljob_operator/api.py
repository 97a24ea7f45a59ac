"""The little of the Kubernetes API that the operator needs, on plain dicts. Tests have an in-memory one."""

import json
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from rljob_api import names

Object = dict[str, Any]

TIMEOUT = 20.0
"""Seconds for any one request."""
KINDS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Event": ("/api/v1", "events"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "Pod": ("/api/v1", "pods"),
    "RLJob": (f"/apis/{names.API_VERSION}", names.PLURAL),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
}


class ApiError(Exception):
    """The API server refused, or could not be reached (code 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: something was read that is no longer so, or a name is taken."""


class Api(Protocol):
    """All errors are `ApiError`s."""

    async def get(self, kind: str, namespace: str, name: str) -> Object: ...
    async def node(self, name: str) -> Object: ...
    async def find(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]: ...
    async def create(self, obj: Object) -> Object: ...
    async def replace(self, obj: Object, subresource: str = "") -> Object: ...
    async def apply(self, obj: Object, live: Object) -> None: ...
    async def delete_pod(self, namespace: str, name: str, uid: str) -> None: ...


async def connect() -> client.ApiClient:
    """In a pod its service account, elsewhere the kubeconfig."""
    try:
        config.load_incluster_config()
    except config.ConfigException:
        await config.load_kube_config()
    return client.ApiClient()


class KubernetesApi:
    """The real one, on the official asynchronous client."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._client = connection

    async def get(self, kind: str, namespace: str, name: str) -> Object:
        return await self._request("GET", _path(kind, namespace, name))

    async def node(self, name: str) -> Object:
        return await self._request("GET", f"/api/v1/nodes/{name}")

    async def find(self, kind: str, namespace: str | None, selector: str = "") -> list[Object]:
        """Not from the API server's cache: what was written before is in it."""
        query = {"labelSelector": selector} if selector else {}
        found = await self._request("GET", _path(kind, namespace), query=query)
        return [{"apiVersion": found["apiVersion"], "kind": kind, **item} for item in found["items"]]

    async def create(self, obj: Object) -> Object:
        path = _path(obj["kind"], obj["metadata"]["namespace"])
        return await self._request("POST", path, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        """Fails with Conflict unless the object is still the one that was read."""
        path = _path(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
        path += f"/{subresource}" if subresource else ""
        return await self._request("PUT", path, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def apply(self, obj: Object, live: Object) -> None:
        """Server-side apply to exactly the object `live`: with its uid, another one of that name is refused and none is created."""
        path = _path(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
        if upgrade := owned_by_creation(live):
            await self._request("PATCH", path, upgrade, content="application/json-patch+json")
        body = obj | {"metadata": obj["metadata"] | {"uid": live["metadata"]["uid"]}}
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        await self._request("PATCH", path, body, query, content="application/apply-patch+yaml")

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        await self._request("DELETE", _path("Pod", namespace, name), {"preconditions": {"uid": uid}})

    async def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        """Reads a whole answer; other seams (the work queue, kopf) do the retrying."""
        headers = {"Content-Type": content, "Accept": "application/json"}
        request = await self._client.param_serialize(
            method,
            path + ("?" + urlencode(query) if query else ""),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        verb, url, sent, data, post = request
        try:
            response = await self._client.call_api(verb, url, sent, data, post, _request_timeout=TIMEOUT)
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError, ApiException) as error:
            raise ApiError(0, f"{method} {path}: {error!r}") from error
        if response.status >= 400:
            raise _error(response.status, f"{method} {path}: {text.decode(errors='replace')[:2000]}")
        result: Object = json.loads(text)
        return result


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    prefix, plural = KINDS[kind]
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{prefix}{scope}/{plural}" + (f"/{name}" if name else "")


def _error(status: int, text: str) -> ApiError:
    return {404: NotFound, 409: Conflict}.get(status, ApiError)(status, text)


def owned_by_creation(live: Object) -> list[Object]:
    """A patch that turns the fields which our POST owns into fields which our applies own; without it an apply could never remove one.

    The same as client-go's csaupgrade. Empty when there is nothing to turn.
    """
    for i, entry in enumerate(live["metadata"].get("managedFields", [])):
        ours = entry.get("manager") == names.FIELD_MANAGER and entry.get("operation") == "Update"
        if ours and not entry.get("subresource"):
            version = {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": live["metadata"]["resourceVersion"],
            }
            return [{"op": "replace", "path": f"/metadata/managedFields/{i}/operation", "value": "Apply"}, version]
    return []
