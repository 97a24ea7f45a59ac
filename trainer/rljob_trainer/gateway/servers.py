"""The rollout servers, as the driver lists them: each request goes to the one with the fewest samples, and to another one when that is lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.wire.rollout_client import ReplicaLost, RolloutClient
from rljob_trainer.wire.sample import SampleAnswer, SampleRequest
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

RETRY_SECONDS = 1.0
"""Before a server that was lost is asked again; there may be no other."""

MOST_SENT = 20
"""A server that ends is not listed for much longer than a second."""


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
        self._changed = asyncio.Event()

    def follow(self, attempt: int, endpoints: Sequence[RolloutEndpoint]) -> None:
        """The servers of an attempt."""
        listed = Listed(attempt, tuple(endpoints))
        if listed != self._listed:
            self._listed = listed
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._listed.endpoints)

    async def sample(self, request: SampleRequest) -> SampleAnswer:
        """Waits for a server, as long as it takes. Raises RequestRefusedError, and ReplicaLost when it was sent MOST_SENT times: perhaps servers die
        of it."""
        sent = 0
        while True:
            changed, listed = self._changed, self._listed
            if not listed.endpoints:
                await changed.wait()
                continue
            endpoint = min(listed.endpoints, key=lambda e: self._samples[e.pod_uid])
            try:
                return await self._asked(endpoint, listed.attempt, request)
            except (ReplicaLost, AttemptSuperseded):
                sent += 1
                if sent == MOST_SENT:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def _asked(self, endpoint: RolloutEndpoint, attempt: int, request: SampleRequest) -> SampleAnswer:
        self._samples[endpoint.pod_uid] += request.n
        try:
            async with RolloutClient(endpoint, self._token, attempt) as client:
                return await client.sample(request)
        finally:
            self._samples[endpoint.pod_uid] -= request.n
