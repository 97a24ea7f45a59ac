"""The rollout servers, as the driver lists them: each request goes to the one with the fewest samples, and to another one when that is lost."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.wire.rollout_client import ReplicaLost, ReplicaUnreachable, RolloutClient
from rljob_trainer.wire.sample import SampleAnswer, SampleRequest
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

RETRY_SECONDS = 1.0
"""Before a server that was lost is asked again."""
LONGEST_RETRY_SECONDS = 10.0
"""The same for a request that has lost several."""
MOST_SENT = 6
"""Servers that may be lost with a request: perhaps they end of it. One that ends answers for some seconds that it has failed."""


@dataclass(frozen=True)
class Listed:
    """What the driver of an attempt says."""

    attempt: int
    endpoints: tuple[RolloutEndpoint, ...]


class SamplingServers:
    """The servers of the current attempt. Those of the last one remain until another driver lists its own, since the servers do."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._listed = Listed(0, ())
        self._samples: Counter[str] = Counter()
        """By the UID of a pod: samples under way."""
        self._avoided = dict[str, float]()
        """By the UID of a pod: until when nothing is sent there, since nothing answered."""
        self._changed = asyncio.Event()

    def follow(self, attempt: int, endpoints: Sequence[RolloutEndpoint]) -> None:
        """The servers of an attempt."""
        listed = Listed(attempt, tuple(endpoints))
        if listed != self._listed:
            self._listed = listed
            self._avoided.clear()
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._listed.endpoints)

    async def sample(self, request: SampleRequest) -> SampleAnswer:
        """Waits for a server, as long as it takes. Raises RequestRefusedError, and ReplicaLost when MOST_SENT servers were lost with it."""
        lost, avoided = 0, dict[str, float]()
        while True:
            endpoint = await self._free(avoided)
            listed = self._listed
            try:
                return await self._asked(endpoint, listed.attempt, request)
            except (ReplicaUnreachable, AttemptSuperseded):
                if listed is self._listed:
                    self._avoided[endpoint.pod_uid] = time.monotonic() + RETRY_SECONDS
            except ReplicaLost:  # perhaps of this request: others still go there
                lost += 1
                if lost == MOST_SENT:
                    raise
                pause = min(RETRY_SECONDS * 2 ** (lost - 1), LONGEST_RETRY_SECONDS)
                avoided[endpoint.pod_uid] = time.monotonic() + pause

    async def _free(self, avoided: Mapping[str, float]) -> RolloutEndpoint:
        """Of the servers that are not avoided, the one with the fewest samples, once there is one. `avoided`: by this request alone."""
        while True:
            now, changed = time.monotonic(), self._changed
            until = {
                endpoint.pod_uid: max(found.get(endpoint.pod_uid, now) for found in (avoided, self._avoided))
                for endpoint in self._listed.endpoints
            }
            if free := [e for e in self._listed.endpoints if until[e.pod_uid] <= now]:
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
