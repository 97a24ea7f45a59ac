"""Pods and reports: a list, then a watch from its version, for ever.

kopf could watch these as well. But nearly all events are theirs, and kopf takes most of a millisecond of processor time for each event (a task, a
queue, three loggers, the handler's arguments), about as much as everything else that the operator does for a job (docs/measurements.md).
"""

import asyncio
import logging
from typing import Protocol

from rljob_operator.handlers import REFLECTED, SELECTORS
from rljob_operator.kube.api import ApiError, Gone, Object
from rljob_operator.kube.watches import Watches
from rljob_operator.relist import Relist, Scope

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds after a list or watch that failed; doubles."""


class Take(Protocol):
    """Gets what happened: `EventHandlers.take`."""

    def __call__(self, kind: str, obj: Object, *, gone: bool) -> None: ...


class Reflector:
    """One kind in one namespace, or in all."""

    def __init__(self, relist: Relist, watches: Watches, take: Take, scope: Scope) -> None:
        self._relist, self._watches, self._take = relist, watches, take
        self._kind, self._namespace = scope
        self._version = ""
        """From which the watch continues; empty: nothing is listed."""
        self._pause = FIRST_PAUSE

    async def run(self) -> None:
        """Until cancelled. What fails is tried again."""
        while True:
            try:
                self._version = self._version or await self._relist.list_after_jobs(self._kind, self._namespace)
                await self._follow()
            except Gone:
                self._version = ""
            except ApiError as error:
                await self._failed(error)

    async def _follow(self) -> None:
        """Until the server ends the watch."""
        async for event in self._watches.events(self._kind, self._namespace, SELECTORS[self._kind], self._version):
            self._pause = FIRST_PAUSE
            self._version = event.version
            if event.type != "BOOKMARK":
                self._take(self._kind, {**event.object, "kind": self._kind}, gone=event.type == "DELETED")

    async def _failed(self, error: ApiError) -> None:
        """What may not be read is listed before it is watched again: its absence was no news."""
        if error.code == 403:
            await self._relist.seen(self._kind, self._namespace, 403, watch=True)
            self._version = ""
        log.warning("%s; again in %.1f s", error, self._pause)
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


async def reflect(relist: Relist, watches: Watches, take: Take) -> None:
    """All that kopf does not watch, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for scope in relist.scopes:
            if scope[0] in REFLECTED:
                group.create_task(Reflector(relist, watches, take, scope).run())
