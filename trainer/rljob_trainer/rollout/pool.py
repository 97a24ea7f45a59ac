"""Prompts over replicas: every request gets exactly one answer, whatever happens to the replica that had it first.

    waiting requests --(least loaded replica with room)--> replica --> answer
            ^                                                 |
            +------------------ ReplicaLost ------------------+   the replica leaves the pool

A replica comes back only by `admit`, after its weights have been published again.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec.common import Sampling
from rljob_trainer.rollout.client import Generation, ReplicaLost, RolloutClient
from rljob_trainer.trajectory import Ints
from rljob_trainer.weights.protocol import AttemptSuperseded

WATCH_SECONDS = 5.0
"""Pause between two looks at a replica that is generating."""
MISSES = 3
"""Looks in a row that a replica may leave unanswered before its requests go elsewhere."""
AGAIN_SECONDS = 0.5
"""Pause between two interruptions: a request that was on its way to a replica at the first is there at the second."""


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
        self._asked, self._idle = 0, asyncio.Event()
        self._interrupted = False
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

    async def generate(
        self, prompt_tokens: Sequence[int] | Ints, n: int, sampling: Sampling, seed: int
    ) -> list[Generation]:
        """As RolloutClient.generate, on whichever replica has room; waits while there is none. Raises RequestRefusedError, AttemptSuperseded.

        After `interrupt`: what there is of the responses, or none of them when they had not been begun.
        """
        with self._counted():
            while replica := await self._reserve(n):
                try:
                    answer = replica.client.generate(prompt_tokens, n, sampling, seed)
                    return self._accepted(await _unless_gone(replica, answer))
                except ReplicaLost as lost:
                    self.redispatched += 1
                    await self._leave(replica, lost)
                finally:
                    replica.load -= n
                    await self._notify()
            return []

    async def interrupt(self) -> None:
        """End all requests with what there is of their responses. Returns when every one has its answer."""
        self._interrupted = True
        await self._notify()
        try:
            while self._asked:
                await asyncio.gather(*(self._interrupt(r) for r in list(self._replicas.values()) if r.load))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), AGAIN_SECONDS)
        finally:
            self._interrupted = False

    async def close(self) -> None:
        for pod_uid in list(self._replicas):
            await self.dismiss(pod_uid, "closed")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """A request is under way."""
        self._asked += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self._idle.set()

    def _accepted(self, found: list[Generation]) -> list[Generation]:
        """Raises ReplicaLost for what was cut short, unless we asked for that."""
        if not self._interrupted and any(g.finish_reason == "abort" for g in found):
            raise ReplicaLost("it ended the request early")
        return found

    async def _interrupt(self, replica: _Replica) -> None:
        try:
            await replica.client.interrupt()
        except ReplicaLost as lost:
            await self._leave(replica, lost)

    async def _leave(self, replica: _Replica, lost: ReplicaLost) -> None:
        """Dismiss it, unless it has left already."""
        if self._replicas.get(replica.client.endpoint.pod_uid) is replica:
            await self.dismiss(replica.client.endpoint.pod_uid, str(lost))

    async def _reserve(self, n: int) -> _Replica | None:
        """The least loaded replica with room for `n` samples; an idle one always has room. None once interrupted."""
        async with self._changed:
            while not self._interrupted:
                replica = min(self._replicas.values(), key=lambda r: r.load, default=None)
                if replica and (replica.load == 0 or replica.load + n <= self._limit):
                    replica.load += n
                    return replica
                await self._changed.wait()
        return None

    async def _watch(self, replica: _Replica) -> None:
        """A frozen server looks like a slow one; its front does not answer either."""
        misses = 0
        while misses < MISSES:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await replica.client.state()
                misses = 0
            except AttemptSuperseded:
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
