"""Requests to the real API server, on plain dicts. Watches are kopf's, and those of watch/reflector.py. A token bucket limits
them, as in client-go.
"""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import aiohttp

from rljob_api import names
from rljob_api.callbacks import always
from rljob_api.text import load_json, one_line
from rljob_operator.kube.api import OUTLASTING, ApiError, Listing, NotFound, Object, error, kind_of, path, resource
from rljob_operator.kube.credentials import Credentials


class RateLimiter:
    """`qps` requests per second on average, up to `burst` at once, in the order in which `wait` is called."""

    def __init__(self, qps: float, burst: int) -> None:
        self._interval, self._burst = 1.0 / qps, burst
        self._next = 0.0
        """Time at which a request could start if each took a whole interval."""

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._interval * (self._burst - 1)) + self._interval
        if self._next - self._interval > now:
            await asyncio.sleep(self._next - self._interval - now)


class WatchLimiter:
    """Middleware of an aiohttp client that paces watches, by path: a server that ends each of them at once would be asked in a tight loop."""

    def __init__(self, qps: float = 1.0, burst: int = 10) -> None:
        self._by_path: defaultdict[str, RateLimiter] = defaultdict(partial(RateLimiter, qps, burst))

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "watch" in request.url.query:
            await self._by_path[request.url.path].wait()
        return await handler(request)


TIMEOUT = 20.0
"""Seconds for any one request."""
TRIES, FIRST_PAUSE, LONGEST_PAUSE = 4, 0.25, 5.0
"""How often a request is sent that the server does not serve (401, 429, 5xx), and the seconds between: they double, unless the server names some."""
PAGE = 500
"""Objects in one page of a list: bounds the memory that parsing needs."""
CONNECTIONS = 32
"""Connections at once: few, since each is a TLS handshake and the server answers within milliseconds."""


class KubernetesApi:
    """`calls` counts requests by verb and kind. `may_write` is asked right before each request that changes something."""

    def __init__(
        self,
        credentials: Credentials,
        rate_limiter: RateLimiter,
        connections: int = CONNECTIONS,
        may_write: Callable[[], bool] = always,
    ) -> None:
        self._may_write = may_write
        self._credentials = credentials
        self._rate_limiter = rate_limiter
        self._session = credentials.session(connections)
        self.calls: dict[tuple[str, str], int] = {}

    async def close(self) -> None:
        await self._session.close()

    async def get(self, kind: str, namespace: str | None, name: str) -> Object:
        return await self._request("GET", kind, path(kind, namespace, name))

    async def pages(
        self, kind: str, namespace: str | None, selector: str = "", fields: str = ""
    ) -> AsyncIterator[Listing]:
        """Pages of a consistent list of everything written so far: no resourceVersion is given, so the server reads from etcd, not from its cache.
        `selector`: of labels; `fields`: of fields."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            page = await self._request("GET", kind, path(kind, namespace), query=query)
            objects = [{"apiVersion": page["apiVersion"], "kind": kind, **item} for item in page["items"]]
            yield Listing(page["metadata"]["resourceVersion"], objects)
            more = page["metadata"].get("continue")
            if not more:
                return
            query["continue"] = more

    async def listing(self, kind: str, namespace: str | None, selector: str = "") -> Listing:
        """All pages as one."""
        pages = [page async for page in self.pages(kind, namespace, selector)]
        return Listing(pages[-1].version, [obj for page in pages for obj in page.objects])

    async def serves(self, kind: str) -> bool:
        """Whether clients can discover this kind, of a group that is not the core's."""
        group, version, plural = resource(kind)
        try:
            known = await self._request("GET", "APIGroup", "/apis")
            resources = await self._request("GET", "APIResource", f"/apis/{group}/{version}")
        except NotFound:
            return False
        return group in (g["name"] for g in known["groups"]) and plural in (r["name"] for r in resources["resources"])

    async def create(self, obj: Object) -> Object:
        where = path(kind_of(obj), obj["metadata"]["namespace"])
        return await self._request("POST", kind_of(obj), where, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def replace(self, obj: Object, subresource: str = "") -> Object:
        """Fails with Conflict unless the object is still the one that was read."""
        where = _where(obj) + (f"/{subresource}" if subresource else "")
        return await self._request("PUT", kind_of(obj), where, obj, query={"fieldManager": names.FIELD_MANAGER})

    async def apply(self, obj: Object, live: Object) -> Object:
        """Server-side apply to exactly `live`, as just read: another object of that name is refused, and so is a newer version."""
        where = _where(obj)
        if upgrade := managed_fields_upgrade(live):
            live = await self._request("PATCH", kind_of(obj), where, upgrade, content="application/json-patch+json")
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        return await self._request(
            "PATCH", kind_of(obj), where, _guarded(obj, live), query, "application/apply-patch+yaml"
        )

    async def merge(self, obj: Object, live: Object) -> Object:
        """Set the fields of `obj` in exactly `live`; remove none."""
        query = {"fieldManager": names.FIELD_MANAGER}
        content = "application/merge-patch+json"
        return await self._request("PATCH", kind_of(obj), _where(obj), _guarded(obj, live), query, content)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Object]) -> Object:
        """A JSON patch, whose own `test` operations guard it."""
        where, content = path(kind, namespace, name), "application/json-patch+json"
        return await self._request("PATCH", kind, where, operations, {"fieldManager": names.FIELD_MANAGER}, content)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        """`force`: without waiting for the kubelet, right only when its node cannot run anything."""
        policy = "Foreground" if kind in OUTLASTING else "Background"
        body: Object = {"preconditions": {"uid": uid}, "propagationPolicy": policy}
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
        """Retries what the server did not serve (401, 429, 5xx): every write names a new object, a uid or a version, so a second one has no effect.

        Raises ApiError. A broken connection is not retried here: the queue reconciles the job again.
        """
        pause = FIRST_PAUSE
        for tries_left in reversed(range(TRIES)):
            await self._rate_limiter.wait()
            if method != "GET" and not self._may_write():
                raise ApiError(0, f"{method} {where}: not sent, since another operator may hold the lease")
            self.calls[method, kind] = self.calls.get((method, kind), 0) + 1
            status, text, after = await self._answer(method, where, body, query, content)
            if status < 400:
                return _parsed(text, f"{method} {where}")
            if not tries_left or not (status in (401, 429) or status >= 500):
                raise error(status, f"{method} {where}", text.decode(errors="replace"))
            if status == 401:
                self._credentials.renew()
            await asyncio.sleep(min(after or pause * random.uniform(0.8, 1.2), LONGEST_PAUSE))
            pause *= 2
        raise AssertionError("unreachable")

    async def _answer(
        self, method: str, where: str, body: Any, query: dict[str, str] | None, content: str
    ) -> tuple[int, bytes, float]:
        """Status, body, and the seconds of the Retry-After header, or 0."""
        headers = {"Accept": "application/json", "Content-Type": content} | self._credentials.headers()
        url = self._credentials.server + where + ("?" + urlencode(query) if query else "")
        data = json.dumps(body, separators=(",", ":")) if body is not None else None
        limits = aiohttp.ClientTimeout(total=TIMEOUT)
        try:
            async with self._session.request(method, url, data=data, headers=headers, timeout=limits) as response:
                after = response.headers.get("Retry-After", "")
                return response.status, await response.read(), float(after) if after.isdigit() else 0.0
        except (aiohttp.ClientError, TimeoutError, OSError) as broken:
            if isinstance(broken, aiohttp.ClientConnectorCertificateError):
                self._credentials.renew()
            raise ApiError(0, f"{method} {where}: {broken!r}") from broken


def _parsed(text: bytes, what: str) -> Object:
    """An answer that claims success and is not JSON comes from a proxy in between, not from the API server."""
    try:
        parsed: Object = load_json(text)
    except ValueError as error:
        raise ApiError(0, one_line(f"{what}: the answer is not JSON: {text[:200].decode(errors='replace')}")) from error
    return parsed


def _where(obj: Object) -> str:
    return path(kind_of(obj), obj["metadata"]["namespace"], obj["metadata"]["name"])


def _guarded(obj: Object, live: Object) -> Object:
    guard = {k: live["metadata"][k] for k in ("uid", "resourceVersion")}
    return obj | {"metadata": obj["metadata"] | guard}


def managed_fields_upgrade(live: Object) -> list[Object]:
    """A JSON patch that hands the fields which our POST owns over to our applies; without it no apply could remove one of them. Empty when there is
    nothing to hand over.

    As `UpgradeManagedFieldsPatch` of client-go's csaupgrade.
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
