"""Objects of Dynamic Resource Allocation. They are listed every few seconds while a job wants devices, and not watched: most clusters have none, and
claims of all namespaces change with every pod that has one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.kube.api import Api, ApiError, Key, NotFound, Object
from rljob_placement.claims import uses_devices
from rljob_placement.devices import API, KINDS, NOT_LISTED, NOT_SERVED, Devices, resources_of

INTERVAL = 10.0
"""Seconds between two looks."""

log = logging.getLogger(__name__)


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
        if not self.wanted() and any(self._users(lambda _: False)):
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

    def _set(self, found: Devices) -> None:
        before = self._cache.devices
        self._cache.set_devices(found)
        if (before.problem, before.templates, before.refused) != (found.problem, found.templates, found.refused):
            self._cache.on_jobs(set(self._users(self._plain)))

    async def _list(self, plural: str) -> list[Object]:
        group, version = API.split("/")
        return [one async for page in self._api.pages(f"{plural}.{version}.{group}", None) for one in page.objects]

    def _plain(self, resource: str) -> bool:
        """Whether the resource comes from no devices: nodes offer it themselves, and no DeviceClass has its name."""
        return self._cache.offers(resource) and resource not in self._named

    def _users(self, plain: Callable[[str], bool]) -> Iterator[Key]:
        for job in self._cache.jobs.values():
            if self._uses(job, plain):
                yield job.meta.namespace, job.meta.name

    def _uses(self, job: CachedJob, plain: Callable[[str], bool]) -> bool:
        spec, status = job.validation.result.accepted, job.readable_status
        if spec is None or status is None or status.outcome or not spec.scheduling.facts.assigns_nodes:
            return False
        return uses_devices(spec, job.validation.policy.pod_patch, plain)
