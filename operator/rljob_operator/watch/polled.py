"""Objects that are listed every few seconds and not watched.

Those by which tools ask for a node to be left, such as NVSentinel's DrainRequest: hardly any cluster has their kinds, and none of them may hold up
what is done for jobs. And those of Dynamic Resource Allocation, which are listed while a job wants devices: most clusters have none, and claims of
all namespaces change with every pod that has one.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from rljob_api.callbacks import never
from rljob_api.leave_nodes import reason, requested_node
from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.kube.api import Api, ApiError, Key, NotFound, Object
from rljob_placement.devices import API, KINDS, NOT_LISTED, NOT_SERVED, Devices, resources_of, uses_devices

INTERVAL, ABSENT_INTERVAL = 10.0, 60.0
"""Seconds between two looks, and until one at a kind that the cluster does not have, or that may not be read."""
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
        resource, by_node = kind.partition(".")[0], dict[str, list[str]]()
        async for page in self._api.pages(kind, None):
            for one in page.objects:
                by_node.setdefault(_node(one), []).append(f"{resource} {one['metadata']['name']}")
        return {node: reason(signs) for node, signs in by_node.items() if node}

    def _answered(self, *kinds: str) -> None:
        self._unknown.difference_update(kinds)
        if not self._unknown:
            self._all_known.set()


def _joined(known: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Why nodes are asked to be left, from what is known of each kind."""
    by_node: dict[str, list[str]] = {}
    for requests in known:
        for node, why in requests.items():
            by_node.setdefault(node, []).append(why)
    return {node: reason(signs) for node, signs in by_node.items()}


def _node(request: Object) -> str:
    try:
        return requested_node(request)
    except Exception:  # no foreign object may end or stall the operator
        log.exception("%s %s cannot be read and is ignored", request.get("kind"), request["metadata"]["name"])
        return ""


class DeviceInventory:
    """Keeps `cache.devices` up to date for jobs of the `builtin` backend."""

    def __init__(self, api: Api, cache: ClusterCache) -> None:
        self._api, self._cache = api, cache
        self._failed = False
        self._named = frozenset[str]()
        """Resources that DeviceClasses offer."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(INTERVAL)

    async def turn(self) -> None:
        """A look, if a job wants devices. If none does, what was known is forgotten: it would be of any age for the next one."""
        if not self.wanted() and any(self._users(never)):
            await self._guarded(self._learn_names)
        if self.wanted():
            await self.look()
        elif self._cache.devices.problem != NOT_LISTED:
            self._cache.set_devices(Devices(problem=NOT_LISTED))

    def wanted(self) -> bool:
        """Whether some job may get pods with devices."""
        return any(self._users(self._plain))

    async def look(self) -> None:
        """Lists everything. After an error, what was known before holds."""
        await self._guarded(self._look)

    async def _guarded(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
            self._failed = False
        except Exception as error:  # no foreign object may end or stall the operator
            level = logging.DEBUG if self._failed else logging.WARNING
            log.log(level, "devices are not known: %s", error, exc_info=not isinstance(error, ApiError))
            self._failed = True
            if self._cache.devices.problem:
                self._set(Devices(problem=f"those of the cluster cannot be listed: {error}"))

    async def _learn_names(self) -> None:
        try:
            self._named = frozenset(resources_of(await self._list("deviceclasses")))
        except NotFound:
            self._named = frozenset()

    async def _look(self) -> None:
        try:
            slices, classes, claims, templates = [await self._list(plural) for plural in KINDS]
        except NotFound:
            self._named = frozenset()
            self._set(Devices(problem=NOT_SERVED))
            return
        self._named = frozenset(resources_of(classes))
        self._set(await asyncio.to_thread(Devices.of, slices, classes, claims, templates))

    def _set(self, devices: Devices) -> None:
        before = self._cache.devices
        self._cache.set_devices(devices)
        if (before.problem, before.templates, before.refused) != (devices.problem, devices.templates, devices.refused):
            self._cache.on_jobs(set(self._users(self._plain)))

    async def _list(self, plural: str) -> list[Object]:
        group, version = API.split("/")
        return [one async for page in self._api.pages(f"{plural}.{version}.{group}", None) for one in page.objects]

    def _plain(self, resource: str) -> bool:
        """Whether the resource comes from no devices: nodes offer it themselves, and no DeviceClass has its name."""
        return self._cache.offers(resource) and resource not in self._named

    def _users(self, plain: Callable[[str], bool]) -> Iterator[Key]:
        known = functools.cache(
            plain
        )  # thousands of jobs name the same few resources, and each answer may look at all nodes
        for job in self._cache.jobs.values():
            if self._uses(job, known):
                yield job.meta.namespace, job.meta.name

    def _uses(self, job: CachedJob, plain: Callable[[str], bool]) -> bool:
        spec, status = job.validation.so_far.accepted, job.readable_status
        if spec is None or status is None or status.outcome or not spec.scheduling.facts.assigns_nodes:
            return False
        return uses_devices(spec, job.validation.policy.pod_patch, plain)
