"""Objects by which tools ask for a node to be left, such as NVSentinel's DrainRequest. They are listed every few seconds and not watched: hardly
any cluster has their kinds, and none of them may hold up what is done for jobs."""

import asyncio
import logging
from collections.abc import Sequence

from rljob_api.leave_nodes import requested_node
from rljob_api.text import one_line
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Api, ApiError, NotFound, Object

INTERVAL, ABSENT_INTERVAL = 10.0, 60.0
"""Seconds between two lists of a kind, and of one that the cluster does not have, or that may not be read."""

log = logging.getLogger(__name__)


class DrainRequests:
    """`kinds`: jobs.leaveNodes.requests."""

    def __init__(self, api: Api, cache: ClusterCache, kinds: Sequence[str]) -> None:
        self._api, self._cache, self._kinds = api, cache, kinds
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
        """What the last list of each kind has said: why, by node."""
        self._failed = set[str]()
        """Kinds whose last list failed, which was logged."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: str) -> None:
        while True:
            pause = INTERVAL if await self.look(kind) else ABSENT_INTERVAL
            await asyncio.sleep(pause)

    async def look(self, kind: str) -> bool:
        """Lists a kind. False: there is none, or it may not be read. After any other error, what was known before holds."""
        try:
            self._known[kind] = await self._list(kind)
            self._failed.discard(kind)
            return True
        except NotFound:
            self._known[kind] = {}
            return False
        except ApiError as error:
            log.log(
                logging.DEBUG if kind in self._failed else logging.WARNING, "nodes to leave are not known: %s", error
            )
            self._failed.add(kind)
            return error.code != 403
        finally:
            self._cache.request_nodes({node: why for one in self._known.values() for node, why in one.items()})

    async def _list(self, kind: str) -> dict[str, str]:
        objects = [one async for page in self._api.pages(kind, None) for one in page.objects]
        resource = kind.partition(".")[0]
        return {node: one_line(f"{resource} {one['metadata']['name']}") for one in objects if (node := _node(one))}


def _node(request: Object) -> str:
    try:
        return requested_node(request)
    except Exception:  # no foreign object may end or stall the operator
        log.exception("%s %s cannot be read and is ignored", request.get("kind"), request["metadata"]["name"])
        return ""
