"""Objects of Dynamic Resource Allocation. They are listed every few seconds while a job wants devices, and not watched: most clusters have none, and
claims of all namespaces change with every pod that has one."""

import asyncio
import logging
from collections.abc import Iterator

from rljob_operator.cache.cluster import ClusterCache
from rljob_operator.cache.jobs import CachedJob
from rljob_operator.kube.api import Api, ApiError, Key, NotFound, Object
from rljob_placement.claims import uses_devices
from rljob_placement.devices import API, KINDS, Devices

INTERVAL = 10.0
"""Seconds between two looks."""

log = logging.getLogger(__name__)


class DeviceInventory:
    """Keeps `cache.devices` up to date for jobs of the `builtin` backend."""

    def __init__(self, api: Api, cache: ClusterCache) -> None:
        self._api, self._cache = api, cache
        self._failed = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self.wanted():
                await self.look()
            await asyncio.sleep(INTERVAL)

    def wanted(self) -> bool:
        """Whether some job may get pods with devices."""
        return any(True for _ in self._users())

    async def look(self) -> None:
        """Lists everything. After an error, what was known before holds."""
        try:
            slices, classes, claims, templates = [await self._list(plural) for plural in KINDS]
            found = await asyncio.to_thread(Devices.of, slices, classes, claims, templates)
            self._failed = False
        except Exception as error:  # no foreign object may end or stall the operator
            level = logging.DEBUG if self._failed else logging.WARNING
            log.log(level, "devices are not known: %s", error, exc_info=not isinstance(error, ApiError))
            self._failed = True
            return
        before = self._cache.devices
        self._cache.set_devices(found)
        if (before.listed, before.templates, before.refused) != (found.listed, found.templates, found.refused):
            self._cache.on_jobs(set(self._users()))

    async def _list(self, plural: str) -> list[Object]:
        """None before Kubernetes 1.34, which does not serve this version."""
        group, version = API.split("/")
        try:
            return [one async for page in self._api.pages(f"{plural}.{version}.{group}", None) for one in page.objects]
        except NotFound:
            return []

    def _users(self) -> Iterator[Key]:
        for job in self._cache.jobs.values():
            if self._uses(job):
                yield job.meta.namespace, job.meta.name

    def _uses(self, job: CachedJob) -> bool:
        spec, status = job.validation.result.accepted, job.readable_status
        if spec is None or status is None or status.outcome or not spec.scheduling.facts.assigns_nodes:
            return False
        return uses_devices(spec, job.validation.policy.pod_patch, self._cache.offers)
