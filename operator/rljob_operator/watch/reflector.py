"""Reflectors of jobs, pods and reports: each lists its kind, then watches it from the list's version, for ever.

kopf could not read jobs that users have nested too deep for Python, and would end (see rljob_api/text.py). It could watch pods and reports. But
nearly all events are theirs, and kopf takes most of a millisecond of processor time for each event (a task, a
queue, three loggers, the handler's arguments): about as much as everything else that the operator does for a job (docs/evidence/cpus.md).
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import aiohttp

from rljob_api.text import load_json
from rljob_operator.kube.api import ApiError, Gone, NotFound, Object, error, path
from rljob_operator.kube.client import TIMEOUT, WatchLimiter
from rljob_operator.kube.credentials import Credentials
from rljob_operator.watch.events import REFLECTED, SELECTORS, Relist, Scope

WATCH_SECONDS = 300
"""Seconds after which the server is asked to end a watch."""
SILENCE = 70.0
"""Seconds without a byte after which a connection counts as dead: the server sends a bookmark every minute."""


class WatchEvent(NamedTuple):
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

    async def events(self, kind: str, namespace: str | None, selector: str, version: str) -> AsyncIterator[WatchEvent]:
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
                    yield _event(load_json(line), what)
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


def _event(raw: Object, what: str) -> WatchEvent:
    if raw["type"] == "ERROR":
        raise error(raw["object"].get("code", 0), what, json.dumps(raw["object"]))
    return WatchEvent(raw["type"], raw["object"]["metadata"]["resourceVersion"], raw["object"])


log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between a list or watch that failed and the next one: doubles with each failure in a row."""


class Handle(Protocol):
    """The type of `EventHandlers.handle`."""

    def __call__(self, kind: str, obj: Object, *, gone: bool) -> None: ...


class Reflector:
    """Keeps the cache of one kind up to date, in one namespace or in all."""

    def __init__(self, relist: Relist, watches: Watches, handle: Handle, scope: Scope) -> None:
        self._relist, self._watches, self._handle = relist, watches, handle
        self._kind, self._namespace = scope
        self._version = ""
        """resourceVersion from which the watch continues; empty: a list comes first."""
        self._pause = FIRST_PAUSE

    async def run(self) -> None:
        """Runs until cancelled, and retries what fails."""
        while True:
            try:
                self._version = self._version or await self._relist.list_after_jobs(self._kind, self._namespace)
                await self._follow()
            except ApiError as error:
                await self._failed(error)

    async def _follow(self) -> None:
        """Handles the events of one watch, until the server ends it. Raises Gone and ApiError."""
        async for event in self._watches.events(self._kind, self._namespace, SELECTORS[self._kind], self._version):
            self._pause = FIRST_PAUSE
            self._version = event.version
            if event.type != "BOOKMARK":
                self._handle(self._kind, {**event.object, "kind": self._kind}, gone=event.type == "DELETED")

    async def _failed(self, error: ApiError) -> None:
        """Waits before the next try. What may not be read (403), is not there (404, without its CRD), or not from this version (410), is listed
        before it is watched again: events may have been missed."""
        if error.code == 403:
            await self._relist.seen(self._kind, self._namespace, 403, watch=True)
        if error.code == 403 or isinstance(error, Gone | NotFound):
            self._version = ""
        log.warning("%s; again in %.1f s", error, self._pause)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


async def reflect(relist: Relist, watches: Watches, handle: Handle) -> None:
    """Runs a reflector for every kind and namespace that kopf does not watch, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for scope in relist.scopes:
            if scope[0] in REFLECTED:
                group.create_task(Reflector(relist, watches, handle, scope).run())
