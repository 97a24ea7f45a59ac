"""The real API server, over the session and the credentials of the official asynchronous client.

Its generated methods are not used: they cost more time than the request, and cannot watch.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import client, config

from rljob_api import names
from rljob_operator.kube.api import ApiError, Change, Listing, Object, error, path
from rljob_operator.kube.rate_limit import RateLimiter

TIMEOUT = 20.0
"""Seconds for any one request."""
TRIES, FIRST_PAUSE, LONGEST_PAUSE = 4, 0.25, 5.0
"""Of a request that the server did not serve (429, 5xx); pauses are seconds and double, unless the server names one."""
PAGE = 500
"""Objects of one answer to a list: bounds the memory that parsing needs."""
WATCH_SECONDS, SILENCE = 300, 100.0
"""The server ends a watch after so many seconds; one that shows not even a bookmark for SILENCE is dead (one comes each minute)."""


async def connect() -> client.Configuration:
    """In a pod its service account, elsewhere the kubeconfig."""
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=settings)
    return settings


class KubernetesApi:
    """`calls` counts requests by verb and kind, watches excepted."""

    def __init__(self, settings: client.Configuration, rate_limiter: RateLimiter) -> None:
        self._settings = settings
        self._rate_limiter = rate_limiter
        # aiohttp would ask a thread for .netrc and for proxies at every request, which takes as long as the request
        settings.client_session_kwargs = {"trust_env": bool(getproxies())}
        self._session = client.ApiClient(settings).rest_client._create_pool_manager()
        self.calls: dict[tuple[str, str], int] = {}

    async def close(self) -> None:
        await self._session.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return await self._request("GET", kind, path(kind, namespace, name))

    async def listing(self, kind: str, namespace: str | None, selector: str = "") -> Listing:
        """Not from the API server's past: what was written before is in it. In pages, all of one version."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        found: list[Object] = []
        while True:
            page = await self._request("GET", kind, path(kind, namespace), query=query)
            found += [{"apiVersion": page["apiVersion"], "kind": kind, **item} for item in page["items"]]
            if not (more := page["metadata"].get("continue")):
                return Listing(page["metadata"]["resourceVersion"], found)
            query["continue"] = more

    async def watch(self, kind: str, namespace: str | None, selector: str, version: str) -> AsyncIterator[Change]:
        """Ends when the server ends it; then it may go on from the last version seen. Gone: list again."""
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(WATCH_SECONDS)} | ({"labelSelector": selector} if selector else {})
        where = path(kind, namespace)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=SILENCE)
        try:
            async with await self._send("GET", where, query=query, limits=limits) as response:
                if response.status >= 400:
                    raise error(response.status, f"watch {where}", await response.text())
                async for line in _lines(response):
                    yield _change(json.loads(line))
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            raise ApiError(0, f"watch {where}: {broken!r}") from broken

    async def create(self, obj: Object) -> Object:
        where = path(obj["kind"], obj["metadata"]["namespace"])
        return await self._request("POST", obj["kind"], where, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        """Fails with Conflict unless the object is still the one that was read."""
        where = _where(obj) + (f"/{subresource}" if subresource else "")
        return await self._request("PUT", obj["kind"], where, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def apply(self, obj: Object, live: Object) -> Object:
        """Server-side apply to exactly `live`, as just read: another object of that name is refused, and so is a newer version."""
        where = _where(obj)
        if upgrade := owned_by_creation(live):
            live = await self._request("PATCH", obj["kind"], where, upgrade, content="application/json-patch+json")
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._request(
            "PATCH", obj["kind"], where, _guarded(obj, live), query, "application/apply-patch+yaml"
        )

    async def merge(self, obj: Object, live: Object) -> Object:
        """Set the fields of `obj` in exactly `live`; remove none."""
        query = {"fieldManager": names.FIELD_MANAGER}
        content = "application/merge-patch+json"
        return await self._request("PATCH", obj["kind"], _where(obj), _guarded(obj, live), query, content)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        """A JSON patch, whose own `test` operations guard it."""
        where, content = path(kind, namespace, name), "application/json-patch+json"
        return await self._request("PATCH", kind, where, operations, {"fieldManager": names.FIELD_MANAGER}, content)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        """`force`: without waiting for the kubelet, right only when its node cannot run anything."""
        body: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._request(
            "DELETE", kind, path(kind, namespace, name), body | ({"gracePeriodSeconds": 0} if force else {})
        )

    async def _request(
        self,
        method: str,
        kind: str,
        where: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        """Tried again when the server did not serve it. All writes are guarded by a name, uid or version, so that twice is once.

        A connection that breaks is the caller's: the queue makes another pass.
        """
        pause = FIRST_PAUSE
        for tries_left in reversed(range(TRIES)):
            await self._rate_limiter.wait()
            self.calls[method, kind] = self.calls.get((method, kind), 0) + 1
            status, text, after = await self._answer(method, where, body, query, content)
            if status < 400:
                found: Object = json.loads(text)
                return found
            if not tries_left or not (status == 429 or status >= 500):
                raise error(status, f"{method} {where}", text.decode(errors="replace"))
            await asyncio.sleep(min(after or pause * random.uniform(0.8, 1.2), LONGEST_PAUSE))
            pause *= 2
        raise AssertionError("unreachable")

    async def _answer(
        self, method: str, where: str, body: Any, query: dict[str, str] | None, content: str
    ) -> tuple[int, bytes, float]:
        """Status, body, and the seconds after which the server wants to be asked again."""
        try:
            limits = aiohttp.ClientTimeout(total=TIMEOUT)
            async with await self._send(method, where, body, query, content, limits) as response:
                after = response.headers.get("Retry-After", "")
                return response.status, await response.read(), float(after) if after.isdigit() else 0.0
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            raise ApiError(0, f"{method} {where}: {broken!r}") from broken

    async def _send(
        self,
        method: str,
        where: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
        limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content}
        for setting in (await self._settings.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        url = self._settings.host + where + ("?" + urlencode(query) if query else "")
        data = json.dumps(body, separators=(",", ":")) if body is not None else None
        return await self._session.request(method, url, data=data, headers=headers, timeout=limits)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own iterator refuses those over 128 KiB."""
    parts: list[bytes] = []
    async for chunk in response.content.iter_any():
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        for line in rest:
            if whole := b"".join(parts):
                yield whole
            parts = [line]


def _change(event: Object) -> Change:
    if event["type"] == "ERROR":
        raise error(event["object"].get("code", 0), "watch", str(event["object"].get("message")))
    return Change(event["type"], event["object"])


def _where(obj: Object) -> str:
    return path(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])


def _guarded(obj: Object, live: Object) -> Object:
    guard = {k: live["metadata"][k] for k in ("uid", "resourceVersion")}
    return obj | {"metadata": obj["metadata"] | guard}


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
