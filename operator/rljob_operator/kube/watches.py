"""Watches of the kinds that kopf does not watch (see reflector.py)."""

import json
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp

from rljob_api import json_text
from rljob_operator.kube.api import ApiError, Object, error, path
from rljob_operator.kube.client import TIMEOUT
from rljob_operator.kube.credentials import Credentials
from rljob_operator.kube.rate_limit import WatchLimiter

WATCH_SECONDS = 300
"""Seconds after which the server is asked to end a watch."""
SILENCE = 70.0
"""Seconds without a byte after which a connection counts as dead: the server sends a bookmark every minute."""


class Event(NamedTuple):
    """`type`: ADDED, MODIFIED, DELETED, or BOOKMARK, whose object has nothing but a version."""

    type: str
    version: str
    object: Object


class Watches:
    """Opens watches, each on a connection of its own."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._session = credentials.session(0, WatchLimiter())

    async def close(self) -> None:
        await self._session.close()

    async def events(self, kind: str, namespace: str | None, selector: str, version: str) -> AsyncIterator[Event]:
        """Events since `version`, until the server ends the watch. Raises Gone when it has forgotten that version, and ApiError."""
        what = f"watch {path(kind, namespace)}"
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(WATCH_SECONDS)} | ({"labelSelector": selector} if selector else {})
        url = self._credentials.server + path(kind, namespace)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=SILENCE)
        headers = {"Accept": "application/json"} | self._credentials.headers()
        try:
            async with self._session.get(url, params=query, headers=headers, timeout=limits) as response:
                await self._check(response, what)
                async for line in lines(response.content.iter_any()):
                    yield _event(json_text.loads(line), what)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as broken:
            raise ApiError(0, f"{what}: {broken!r}") from broken

    async def _check(self, response: aiohttp.ClientResponse, what: str) -> None:
        if response.status == 401:
            self._credentials.renew()
        if response.status >= 400:
            raise error(response.status, what, await response.text())


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits chunks into lines of any length. aiohttp's own iterator refuses lines beyond its buffer."""
    parts: list[bytes] = []
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        parts.append(first)
        for line in rest:
            if whole := b"".join(parts):
                yield whole
            parts = [line]


def _event(raw: Object, what: str) -> Event:
    if raw["type"] == "ERROR":
        raise error(raw["object"].get("code", 0), what, json.dumps(raw["object"]))
    return Event(raw["type"], raw["object"]["metadata"]["resourceVersion"], raw["object"])
