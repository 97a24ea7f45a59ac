"""The rollout servers that make samples, as the driver lists them: each request goes to the one with the fewest samples, and to another one when that
is lost."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.machine import most_open_files
from rljob_trainer.wire.rollout_client import ReplicaLost, ReplicaUnreachable, RolloutClient
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

RETRY_SECONDS = 1.0
"""Before a server that was lost is asked again."""
LONGEST_RETRY_SECONDS = 10.0
"""The same for a request that has lost several."""
MOST_SENT = 6
"""Servers that may be lost with a request: perhaps they end of it. One that ends answers for some seconds that it has failed."""
MOST_OPEN = 20_000
"""Requests that wait for a server. A client alone can have half of them (samples.py)."""


@dataclass(frozen=True)
class Listed:
    """What the driver of an attempt says."""

    attempt: int
    endpoints: tuple[RolloutEndpoint, ...]


class SamplingServers:
    """The servers of the current attempt. Those of the last one remain until another driver lists its own, since the servers do."""

    def __init__(self, token: str, policies: ServedPolicies | None = None) -> None:
        """`policies`: where servers get whole models; None: they read adapters."""
        self._token, self._policies = token, policies
        self._listed = Listed(0, ())
        self._samples: Counter[str] = Counter()
        """By the UID of a pod: samples under way."""
        self._avoided = dict[str, float]()
        """By the UID of a pod: until when nothing is sent there, since nothing answered."""
        self._changed = asyncio.Event()
        self._places = asyncio.Semaphore(int(min(MOST_OPEN, most_open_files() / 2)))
        """Of samples that are sent: each is an open file, and clients' connections need some, too."""

    def follow(self, attempt: int, endpoints: Sequence[RolloutEndpoint]) -> None:
        """The servers of an attempt."""
        listed = Listed(attempt, tuple(endpoints))
        if listed != self._listed:
            self._listed = listed
            self._avoided.clear()
            self._changed.set()
            self._changed = asyncio.Event()
            if self._policies:
                self._policies.follow(endpoints)

    @property
    def count(self) -> int:
        return len(self._listed.endpoints)

    async def sample(self, request: SampleRequest) -> SampleAnswer:
        """Waits for a server, as long as it takes. Raises RequestRefusedError, and ReplicaLost when MOST_SENT servers were lost with it."""
        async with self._places:
            return await self._sent(request)

    async def _sent(self, request: SampleRequest) -> SampleAnswer:
        lost, avoided = 0, dict[str, float]()
        while True:
            async with self._turn(request) as sent:
                endpoint = await self._free(avoided)
                if endpoint is None:
                    continue
                listed, updates = self._listed, self._updates_of(endpoint)
                try:
                    return await self._asked(endpoint, listed.attempt, sent)
                except (ReplicaUnreachable, AttemptSuperseded):
                    if listed is self._listed:
                        self._avoided[endpoint.pod_uid] = time.monotonic() + RETRY_SECONDS
                    self._lost(endpoint)
                except ReplicaLost:
                    if self._updates_of(endpoint) > updates:
                        continue  # an update has aborted it
                    lost += 1
                    if lost == MOST_SENT:
                        raise
                    await self._doubt(endpoint, listed.attempt, sent)
                    pause = min(RETRY_SECONDS * 2 ** (lost - 1), LONGEST_RETRY_SECONDS)
                    avoided[endpoint.pod_uid] = time.monotonic() + pause

    async def _doubt(self, endpoint: RolloutEndpoint, attempt: int, sent: SampleRequest) -> None:
        """A server has failed with a request, perhaps because of it: others still go there, unless the server has lost the policy."""
        if self._policies is None:
            return
        updates = self._updates_of(endpoint)
        try:
            async with RolloutClient(endpoint, self._token, attempt) as client:
                state = await client.state()
        except (ReplicaLost, AttemptSuperseded):
            state = {}
        updated = self._updates_of(endpoint) != updates
        if state.get("policy_step") != sent.policy_step and not updated:
            self._policies.lost(endpoint)

    def _updates_of(self, endpoint: RolloutEndpoint) -> int:
        return self._policies.updates_of(endpoint) if self._policies else 0

    def _lost(self, endpoint: RolloutEndpoint) -> None:
        if self._policies:
            self._policies.lost(endpoint)

    @contextlib.asynccontextmanager
    async def _turn(self, request: SampleRequest) -> AsyncIterator[SampleRequest]:
        """The request as it is sent, once servers have what it samples from. Raises RequestRefusedError when they cannot have it."""
        if self._policies is None:
            yield request
            return
        async with self._policies.turn(request.adapter.directory if request.adapter else ""):
            yield replace(request, adapter=None, policy_step=self._policies.step)

    async def _free(self, avoided: Mapping[str, float]) -> RolloutEndpoint | None:
        """Of the servers that are not avoided, the one with the fewest samples, once there is one. None: no server has the policy any more.

        `avoided`: by this request alone.
        """
        while True:
            now, changed = time.monotonic(), self._changed
            endpoints = [e for e in self._listed.endpoints if not self._policies or self._policies.serving(e)]
            if self._policies and not endpoints:
                return None
            until = {
                endpoint.pod_uid: max(ends.get(endpoint.pod_uid, now) for ends in (avoided, self._avoided))
                for endpoint in endpoints
            }
            free = [e for e in endpoints if until[e.pod_uid] <= now]
            if free:
                return min(free, key=lambda e: self._samples[e.pod_uid])
            again = min(until.values(), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if again is None else again - now):
                    await changed.wait()

    async def _asked(self, endpoint: RolloutEndpoint, attempt: int, request: SampleRequest) -> SampleAnswer:
        self._samples[endpoint.pod_uid] += request.n
        try:
            async with RolloutClient(endpoint, self._token, attempt) as client:
                return await client.sample(request)
        finally:
            self._samples[endpoint.pod_uid] -= request.n
