"""One operator acts at a time: it holds a Lease, renews it, and stops acting when it cannot. The protocol is client-go's, but the process continues
and contends for the lease again: an outage of the API server is no reason for a restart, which the kubelet would delay more each time.

Others take the lease of a holder that has not renewed it for LEASE_DURATION. A holder that cannot renew it gives up after RENEW_DEADLINE, which is
earlier, even if it still waits for an answer.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from rljob_api.callbacks import nothing
from rljob_operator.kube.api import Api, ApiError, Conflict, NotFound, Object

log = logging.getLogger(__name__)

NAME = "rljob-operator"
LEASE_DURATION, RENEW_DEADLINE, RETRY_PERIOD = 15.0, 10.0, 2.0
"""Seconds, with the names and defaults of client-go."""


class LeaseLost(RuntimeError):
    """Another operator may be acting now."""


class LeaderElector:
    """`identity` is the pod's name: a container that restarts in its pod is the same holder, since its predecessor is certainly dead.

    `heartbeat` is called after every attempt to get or renew the lease, whether it succeeds or not; `stand_by`, while we wait, whenever another
    operator holds it.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        heartbeat: Callable[[], None],
        stand_by: Callable[[], None] = nothing,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._heartbeat, self._stand_by = heartbeat, stand_by
        self._renewed_at = -math.inf
        """When the last successful request for a lease that is not lost was sent, on our clock. Others may count from when the server handled it,
        before its answer."""
        self._observed: tuple[str, float] = ("", 0.0)
        """Spec of another holder's lease, as JSON, and when we first saw it. What others write around the spec renews nothing."""

    def is_leader(self) -> bool:
        """Whether nobody else can hold the lease yet. When the event loop was busy, that ends some time before `lead` can cancel the work, so
        requests that change something ask right before they are sent."""
        return time.monotonic() < self._renewed_at + RENEW_DEADLINE

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does the work while we hold the lease, until cancelled. When the lease is lost, the work is cancelled; it is begun anew when we hold the
        lease again, and the last one has ended."""
        try:
            while True:
                await self.acquire()
                await self._hold(work)
        except asyncio.CancelledError:
            if self.is_leader():
                await self.release_lease()
            raise

    async def _hold(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        log.info("%s holds the lease", self._identity)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.renew())
                group.create_task(work())
        except* LeaseLost as lost:
            log.warning(
                "%s; another operator may act now, so nothing is done until it is held again", lost.exceptions[0]
            )

    async def acquire(self) -> None:
        """Returns when we hold the lease."""
        while not await self._try_acquire_or_renew():
            if self._observed[0]:
                self._stand_by()
            await asyncio.sleep(RETRY_PERIOD)

    async def renew(self) -> None:
        """Renews the lease until that fails. Raises LeaseLost."""
        while True:
            left = max(0.0, self._renewed_at + RENEW_DEADLINE - time.monotonic())
            try:
                renewed = await asyncio.wait_for(self._renew_once(), left)
            except TimeoutError:
                renewed = False
            if not renewed:
                age, self._renewed_at = time.monotonic() - self._renewed_at, -math.inf
                raise LeaseLost(f"lease {self._namespace}/{NAME} could not be renewed for {age:.0f} s")

    async def _renew_once(self) -> bool:
        """Tries until the lease is renewed (True) or another operator holds it (False)."""
        while not self._observed[0]:
            await asyncio.sleep(RETRY_PERIOD)
            if await self._try_acquire_or_renew():
                return True
        return False

    async def release_lease(self) -> None:
        """Gives the lease back, so that a successor need not wait until it expires."""
        try:
            lease = await self._api.get("Lease", self._namespace, NAME)
            if lease["spec"].get("holderIdentity") == self._identity:
                await self._api.replace(lease | {"spec": lease["spec"] | {"holderIdentity": ""}})
        except ApiError as error:
            log.warning("the lease is not released: %s", error)

    async def _try_acquire_or_renew(self) -> bool:
        asked = time.monotonic()
        try:
            held = await asyncio.wait_for(self._acquire_or_renew(), RENEW_DEADLINE / 2)
        except (ApiError, TimeoutError) as error:
            log.warning("lease %s/%s: %r", self._namespace, NAME, error)
            return False
        finally:
            self._heartbeat()
        self._renewed_at = asked if held else self._renewed_at
        return held

    async def _acquire_or_renew(self) -> bool:
        try:
            lease = await self._api.get("Lease", self._namespace, NAME)
        except NotFound:
            meta = {"name": NAME, "namespace": self._namespace}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            self._observed = ("", 0.0)
            await self._api.create(lease | {"spec": self._spec()})
            return True
        if not self._is_free(lease):
            return False
        self._observed = ("", 0.0)
        try:
            await self._api.replace(lease | {"spec": self._spec()})
        except Conflict:
            return False
        return True

    def _is_free(self, lease: Object) -> bool:
        """Whether nobody else holds the lease. Its expiry is measured on our own clock from when we saw it change, so clocks need not agree."""
        holder = lease.get("spec", {}).get("holderIdentity", "")
        if holder in ("", self._identity):
            return True
        record = json.dumps(lease["spec"], sort_keys=True)
        if self._observed[0] != record:
            log.info("lease %s/%s is held by %s", self._namespace, NAME, holder)
            self._observed = (record, time.monotonic())
        return time.monotonic() - self._observed[1] > LEASE_DURATION

    def _spec(self) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": self._identity, "leaseDurationSeconds": int(LEASE_DURATION), "renewTime": now}
