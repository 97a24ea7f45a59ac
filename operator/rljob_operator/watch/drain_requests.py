"""Objects by which tools ask for a node to be left, such as NVSentinel's DrainRequest. They are listed every few seconds and not watched: hardly
any cluster has their kinds, and none of them may hold up what is done for jobs."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from rljob_api.leave_nodes import reason, requested_node
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.kube.api import Api, ApiError, NotFound, Object

INTERVAL, ABSENT_INTERVAL = 10.0, 60.0
"""Seconds between two lists of a kind, and of one that the cluster does not have, or that may not be read."""
FIRST_LOOK = 60.0
"""Seconds that reconciles wait for the first list of each kind, at most."""

log = logging.getLogger(__name__)


class DrainRequests:
    """`kinds`: jobs.leaveNodes.requests."""

    def __init__(self, api: Api, cache: ClusterCache, kinds: Sequence[str]) -> None:
        self._api, self._cache, self._kinds = api, cache, kinds
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
        """What the last list of each kind has said: why, by node."""
        self._failed = set[str]()
        """Kinds whose last list failed, which was logged."""
        self._unknown, self._all_known = set(kinds), asyncio.Event()
        """Kinds of which no list has been answered yet, and whether there is none left."""
        self._answered()

    async def known(self) -> None:
        """Waits until each kind has been listed once: until then a node looks as if nobody asked for it. An API server that cannot list one kind does
        not hold up jobs for longer than FIRST_LOOK."""
        try:
            async with asyncio.timeout(FIRST_LOOK):
                await self._all_known.wait()
        except TimeoutError:
            log.warning("jobs are reconciled without the requests that cannot be listed: %s", sorted(self._unknown))

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
            self._answered(kind)
            return True
        except NotFound:
            self._known[kind] = {}
            self._answered(kind)
            return False
        except ApiError as error:
            log.log(
                logging.DEBUG if kind in self._failed else logging.WARNING, "nodes to leave are not known: %s", error
            )
            self._failed.add(kind)
            if error.code == 403:
                self._answered(kind)
            return error.code != 403
        finally:
            self._cache.request_nodes(_joined(self._known.values()))

    async def _list(self, kind: str) -> dict[str, str]:
        """Why nodes are asked to be left, by their names: all requests for one node."""
        resource, found = kind.partition(".")[0], dict[str, list[str]]()
        async for page in self._api.pages(kind, None):
            for one in page.objects:
                found.setdefault(_node(one), []).append(f"{resource} {one['metadata']['name']}")
        return {node: reason(signs) for node, signs in found.items() if node}

    def _answered(self, *kinds: str) -> None:
        self._unknown.difference_update(kinds)
        if not self._unknown:
            self._all_known.set()


def _joined(known: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Why nodes are asked to be left, from what is known of each kind."""
    found: dict[str, list[str]] = {}
    for requests in known:
        for node, why in requests.items():
            found.setdefault(node, []).append(why)
    return {node: reason(signs) for node, signs in found.items()}


def _node(request: Object) -> str:
    try:
        return requested_node(request)
    except Exception:  # no foreign object may end or stall the operator
        log.exception("%s %s cannot be read and is ignored", request.get("kind"), request["metadata"]["name"])
        return ""
