"""One operator acts at a time: it holds a Lease, renews it, and ends itself when it cannot.

A holder that has not renewed for LIFETIME is taken to be dead; one that fails to renew gives up after PATIENCE, which is earlier, also if it
still waits for an answer then.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rljob_operator.kube.api import Api, ApiError, Conflict, NotFound, Object

log = logging.getLogger(__name__)

NAME = "rljob-operator"
LIFETIME, PATIENCE, PERIOD = 15.0, 10.0, 2.0
"""Seconds."""


class LeaseLost(RuntimeError):
    """Another operator may be acting now."""


class LeaderElector:
    """`identity` is the pod's name: a restarted container is the same holder, and its predecessor is certainly dead."""

    def __init__(self, api: Api, namespace: str, identity: str, heartbeat: Callable[[], None]) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._heartbeat = heartbeat
        self._held = 0.0
        """When we asked for what was granted last, on our clock: others may count from then on, not from the answer."""
        self._seen: tuple[str, float] = ("", 0.0)
        """Version of another holder's lease, and since when we have seen it."""

    async def acquire(self) -> None:
        """Waits for as long as another holds it."""
        while True:
            if await self._try():
                return
            await asyncio.sleep(PERIOD)

    async def renew(self) -> None:
        """Runs until it fails: LeaseLost."""
        while True:
            left = self._held + PATIENCE - time.monotonic()
            try:
                renewed = await asyncio.wait_for(self._again(), left)
            except TimeoutError:
                renewed = False
            if not renewed:
                age = time.monotonic() - self._held
                raise LeaseLost(f"lease {self._namespace}/{NAME} could not be renewed for {age:.0f} s")

    async def _again(self) -> bool:
        """False: another holds it."""
        while not self._seen[0]:
            await asyncio.sleep(PERIOD)
            if await self._try():
                return True
        return False

    async def release_lease(self) -> None:
        """Lets a successor start without waiting."""
        try:
            lease = await self._api.get("Lease", self._namespace, NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                await self._api.replace(lease | {"spec": lease["spec"] | {"holderIdentity": ""}})
        except ApiError as error:
            log.warning("the lease is not released: %s", error)

    async def _try(self) -> bool:
        asked = time.monotonic()
        try:
            held = await asyncio.wait_for(self._take(), PATIENCE / 2)
        except (ApiError, TimeoutError) as error:
            log.warning("lease %s/%s: %r", self._namespace, NAME, error)
            return False
        finally:
            self._heartbeat()
        self._held = asked if held else self._held
        return held

    async def _take(self) -> bool:
        try:
            lease = await self._api.get("Lease", self._namespace, NAME)
        except NotFound:
            meta = {"name": NAME, "namespace": self._namespace}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            await self._api.create(lease | {"spec": self._spec()})
            return True
        if not self._free(lease):
            return False
        self._seen = ("", 0.0)
        try:
            await self._api.replace(lease | {"spec": self._spec()})
        except Conflict:
            return False
        return True

    def _free(self, lease: Object) -> bool:
        """Expiry is measured on our own clock since we saw the lease change, so clocks need not agree."""
        holder = lease.get("spec", {}).get("holderIdentity", "")
        if holder in ("", self._identity):
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            log.info("lease %s/%s is held by %s", self._namespace, NAME, holder)
            self._seen = (version, time.monotonic())
        return time.monotonic() - self._seen[1] > LIFETIME

    def _spec(self) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._identity, "leaseDurationSeconds": int(LIFETIME), "renewTime": now}
