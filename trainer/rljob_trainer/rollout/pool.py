"""Prompts over replicas: every request gets exactly one answer, whatever happens to the replica that had it first.

    waiting requests --(least loaded replica with room)--> replica --> answer
            ^                                                 |
            +------------------ ReplicaLost ------------------+   the replica leaves the pool

A replica comes back only by `admit`, after its weights have been published again.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.rollout.client import Generation, ReplicaLost, RolloutClient
from rljob_trainer.weights.wire import FencedOut

WATCH_SECONDS = 5.0
"""Pause between two looks at a replica that is generating."""
MISSES = 3
"""Looks in a row that a replica may leave unanswered before its requests go elsewhere."""


@dataclass(eq=False)
class _Replica:
    client: RolloutClient
    gone: asyncio.Future[Any]
    """Why it left the pool; pending while it is in."""
    load: int = 0
    """Samples in flight."""
    watcher: asyncio.Task[None] | None = None


class Pool:
    """The replicas that serve the current policy. Used from one event loop."""

    def __init__(self, token: str, attempt: int, samples_in_flight: int) -> None:
        """`samples_in_flight`: what one replica has at a time, which is its batch: a newcomer finds requests still waiting."""
        self._token, self._attempt, self._limit = token, attempt, samples_in_flight
        self._replicas: dict[str, _Replica] = {}
        self._changed = asyncio.Condition()
        self.redispatched = 0
        """Requests that were sent again because their replica was lost."""
        self.lost: dict[str, str] = {}
        """Pod uid -> why it left, since it was last admitted."""

    @property
    def replicas(self) -> list[RolloutEndpoint]:
        return [r.client.endpoint for r in self._replicas.values()]

    async def admit(self, endpoint: RolloutEndpoint) -> None:
        """A replica that has just been brought to the current policy; waiting requests go to it at once."""
        await self.dismiss(endpoint.pod_uid, "replaced")
        client = await RolloutClient(endpoint, self._token, self._attempt).__aenter__()
        replica = _Replica(client, asyncio.get_running_loop().create_future())
        replica.watcher = asyncio.create_task(self._watch(replica))
        self.lost.pop(endpoint.pod_uid, None)
        self._replicas[endpoint.pod_uid] = replica
        await self._notify()

    async def dismiss(self, pod_uid: str, reason: str = "dismissed") -> None:
        """A replica that is gone, or about to change its weights; what it was generating is generated elsewhere."""
        replica = self._replicas.pop(pod_uid, None)
        if replica is None:
            return
        self.lost[pod_uid] = reason
        replica.gone.set_result(reason)
        if replica.watcher is not None and replica.watcher is not asyncio.current_task():
            replica.watcher.cancel()
        await replica.client.__aexit__()

    async def generate(self, prompt_tokens: tuple[int, ...], n: int, sampling: Sampling, seed: int) -> list[Generation]:
        """As RolloutClient.generate, on whichever replica has room; waits while there is none. Raises RequestRefusedError, FencedOut."""
        while True:
            replica = await self._reserve(n)
            try:
                return await _unless_gone(replica, replica.client.generate(prompt_tokens, n, sampling, seed))
            except ReplicaLost as lost:
                self.redispatched += 1
                if self._replicas.get(replica.client.endpoint.pod_uid) is replica:
                    await self.dismiss(replica.client.endpoint.pod_uid, str(lost))
            finally:
                replica.load -= n
                await self._notify()

    async def close(self) -> None:
        for pod_uid in list(self._replicas):
            await self.dismiss(pod_uid, "closed")

    async def _reserve(self, n: int) -> _Replica:
        """The least loaded replica with room for `n` samples; an idle one always has room."""
        async with self._changed:
            while True:
                replica = min(self._replicas.values(), key=lambda r: r.load, default=None)
                if replica and (replica.load == 0 or replica.load + n <= self._limit):
                    replica.load += n
                    return replica
                await self._changed.wait()

    async def _watch(self, replica: _Replica) -> None:
        """A frozen server looks like a slow one; its front does not answer either."""
        misses = 0
        while misses < MISSES:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await replica.client.state()
                misses = 0
            except FencedOut:
                return  # the next request says so to its caller
            except ReplicaLost:
                misses += 1
        await self.dismiss(replica.client.endpoint.pod_uid, f"left {MISSES} questions unanswered")

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _unless_gone(replica: _Replica, answer: Coroutine[Any, Any, list[Generation]]) -> list[Generation]:
    """The answer. Raises ReplicaLost when the replica leaves the pool first."""
    call: asyncio.Future[Any] = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({call, replica.gone}, return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return call.result()
        raise ReplicaLost(replica.gone.result())
    finally:
        call.cancel()
