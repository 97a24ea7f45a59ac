"""The pool of rollout servers of one attempt: distributes requests over the servers that have the current policy. Membership is in replicas.py,
the choice of a server in slots.py.

    waiting requests --(a place of slots.py)--> server --> answer
            ^                                     |
            +----------- ReplicaLost -------------+   it gets no requests until it answers and has the weights again

Every request gets exactly one answer, whatever happens to the server that had it first.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rljob_api.protocol import RolloutEndpoint, RolloutState
from rljob_trainer.driver.replicas import Replicas, Served, Serving
from rljob_trainer.driver.slots import Home, Slots
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, ReplicaLost, RolloutClient, Unauthorized
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, UnreadError

PROBE_EVERY_SECONDS = 0.5
MOST_NAMED = 5
AGAIN_SECONDS = 0.5
"""Interval of interruptions: a request that was still in transit during one is there for the next."""
MOST_LOST = 8
"""Servers that may be lost while they read one response. One that loses every server would otherwise go to all of them, for ever."""

log = logging.getLogger(__name__)


class RolloutPool:
    """The pool. `run` must run concurrently. `changed` is called when a server became publishable, became current, or was lost. The driver, which is
    made after the pool, sets it."""

    def __init__(
        self,
        token: str,
        attempt: int,
        min_replicas: int,
        samples_in_flight: int,
        changed: Callable[[], None] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """`samples_in_flight`: most samples that one server gets at a time, as many as it generates in one batch. The others wait here, so that a new
        server finds work. `timeline` has when each server generates."""
        self._token, self._attempt, self.changed = token, attempt, changed
        self._min, self._slots = max(min_replicas, 1), Slots[Serving](samples_in_flight)
        self._replicas = Replicas(self._min)
        self._serving: dict[str, Serving] = {}
        self._joined = asyncio.Event()
        """Set when a server has come into the pool."""
        self._cache_tokens: dict[str, int] = {}
        """By the UID of a pod."""
        self._enough = asyncio.Event()
        self._asked, self._idle = 0, asyncio.Event()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self.redispatched = 0
        """Number of requests that were sent again because their server was lost."""
        self.served = Served()
        self._timeline = timeline or Timeline()

    async def run(self) -> None:
        """Probe servers that are out of the pool, until cancelled."""
        while True:
            await asyncio.gather(*(self._probe(e) for e in self._replicas.to_probe(time.monotonic())))
            await asyncio.sleep(PROBE_EVERY_SECONDS)

    async def follow(self, endpoints: Sequence[RolloutEndpoint]) -> None:
        """Apply a new list of servers."""
        self._replicas.follow(endpoints)
        for serving in list(self._serving.values()):
            if self._replicas.find(serving.endpoint) is None:
                await self._disconnect(serving.endpoint, "its pod is gone")
        self._tell()

    def to_publish(self) -> list[RolloutEndpoint]:
        """Servers that answer and need the policy."""
        return self._replicas.to_publish()

    async def published(self, step: int, targets: Sequence[RolloutEndpoint], failed: Mapping[str, str]) -> None:
        """The policy of `step` was published to `targets`. `failed`: pod -> why it does not have it. Raises PolicyRejectedError."""
        for endpoint in targets:
            if endpoint.pod in failed:
                reason = f"it did not take the policy of step {step}: {failed[endpoint.pod]}"
                await self._lose(endpoint, reason)
                self._replicas.rejected(endpoint, time.monotonic(), reason)
            elif self._replicas.published(endpoint, step) and endpoint.pod_uid not in self._serving:
                await self._connect(endpoint)
        self._tell()

    async def trained(self, keeps: bool = False) -> None:
        """There is a newer policy, which no server has yet. `keeps`: servers get it while they generate, and keep their requests."""
        self._replicas.trained()
        for serving in [] if keeps else list(self._serving.values()):
            await self._disconnect(serving.endpoint, "there is a newer policy")
        self._tell()

    async def enough(self) -> None:
        """Returns once minReplicas have the current policy."""
        await self._enough.wait()

    @property
    def awaited(self) -> str:
        """Servers whose answers are awaited, those first that leave probes unanswered; empty: none."""
        busy = sorted((s for s in self._serving.values() if s.samples), key=lambda s: -s.misses)
        named = [s.endpoint.pod + (" (does not answer)" if s.misses else "") for s in busy[:MOST_NAMED]]
        return ", ".join(named) + (f" and {len(busy) - MOST_NAMED} more" if len(busy) > MOST_NAMED else "")

    @property
    def is_enough(self) -> bool:
        return self._enough.is_set()

    @property
    def current(self) -> list[RolloutEndpoint]:
        """Servers that have the current policy."""
        return self._replicas.current()

    @property
    def count(self) -> int:
        """Number of servers that have the current policy."""
        return len(self.current)

    @property
    def listed(self) -> list[RolloutEndpoint]:
        """All servers of the last list."""
        return self._replicas.listed()

    def report(self) -> list[RolloutState]:
        return self._replicas.report()

    def problem(self, endpoint: RolloutEndpoint) -> str:
        """Why a server was lost; empty if it was not, or answers again."""
        replica = self._replicas.find(endpoint)
        return replica.problem if replica else ""

    async def generate(self, request: GenerationRequest, home: Home | None = None) -> list[Generation]:
        """Like RolloutClient.generate. Waits until a server has room; that of `home`, of the request's trajectory, is preferred. Raises
        RequestRefusedError, AttemptSuperseded.

        After `interrupt` it returns incomplete responses, or an empty list if the request had not been sent yet.
        """
        need, home = self._slots.need(len(request.tokens), request.n), home or Home()
        with self._counted():
            while serving := await self._slots.reserve(need, home):
                try:
                    with self._timeline.working(serving.endpoint.pod, "generating"):
                        return self._accepted(await serving.unless_gone(serving.client.generate(request)))
                except ReplicaLost as lost:
                    self.redispatched += 1
                    await self._leave(serving, lost)
                finally:
                    self._slots.release(serving, need)
            return []

    async def parse(self, request: ParseRequest) -> Parsed:
        """Like RolloutClient.parse, by any server: it needs no place, since it computes nothing. Waits while there is none. Raises UnreadError also
        when MOST_LOST servers were lost meanwhile."""
        for _ in range(MOST_LOST):
            while not self._serving:
                self._joined.clear()
                await self._joined.wait()
            serving = min(self._serving.values(), key=lambda s: s.samples)
            try:
                return await serving.unless_gone(serving.client.parse(request))
            except ReplicaLost as lost:
                await self._leave(serving, lost)
        raise UnreadError(f"{MOST_LOST} servers were lost meanwhile, one after another")

    async def resumed(self) -> None:
        """Returns while no interruption is under way."""
        await self._resumed.wait()

    async def interrupt(self) -> None:
        """End all requests with what has been generated so far. Returns when all of them have been answered."""
        self._resumed.clear()
        self._slots.interrupt()
        try:
            while self._asked:
                await asyncio.gather(*(self._interrupt(s) for s in list(self._serving.values()) if s.samples))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), AGAIN_SECONDS)
        finally:
            self._slots.resume()
            self._resumed.set()

    async def close(self) -> None:
        for serving in list(self._serving.values()):
            await self._disconnect(serving.endpoint, "closed")

    async def _probe(self, endpoint: RolloutEndpoint) -> None:
        try:
            async with RolloutClient(endpoint, self._token, self._attempt) as client:
                self._cache_tokens[endpoint.pod_uid] = (await client.state()).get("cache_tokens", 0)
        except Unauthorized as refused:
            if not self.problem(endpoint):
                log.warning("%s", refused)
            self._replicas.refused(endpoint, time.monotonic(), str(refused))
            self._tell()
        except ReplicaLost:
            self._replicas.lost(endpoint, time.monotonic())
        else:
            self._replicas.healthy(endpoint)
            self._tell()

    async def _connect(self, endpoint: RolloutEndpoint) -> None:
        """Take a server that has the current policy into the pool; waiting requests go to it at once."""
        await self._disconnect(endpoint, "replaced")
        client = await RolloutClient(endpoint, self._token, self._attempt).__aenter__()
        gone, tokens = asyncio.get_running_loop().create_future(), self._cache_tokens.get(endpoint.pod_uid, 0)
        serving = Serving(cache_tokens=tokens, client=client, gone=gone)
        serving.watcher = asyncio.create_task(self._watch(serving))
        self._serving[endpoint.pod_uid] = serving
        self._slots.add(serving)
        self._joined.set()

    async def _disconnect(self, endpoint: RolloutEndpoint, reason: str) -> None:
        """Take a server out of the pool; its requests are sent elsewhere."""
        serving = self._serving.pop(endpoint.pod_uid, None)
        if serving is None:
            return
        self._slots.remove(serving)
        serving.gone.set_result(reason)
        if serving.watcher is not None and serving.watcher is not asyncio.current_task():
            serving.watcher.cancel()
        await serving.client.__aexit__()

    async def _lose(self, endpoint: RolloutEndpoint, reason: str) -> None:
        log.warning("rollout %s is lost: %s", endpoint.pod, reason)
        self._replicas.lost(endpoint, time.monotonic(), reason)
        await self._disconnect(endpoint, reason)
        self._tell()

    async def _leave(self, serving: Serving, lost: ReplicaLost) -> None:
        """Mark a server as lost, unless it is out of the pool already."""
        if self._serving.get(serving.endpoint.pod_uid) is serving:
            await self._lose(serving.endpoint, str(lost))

    async def _interrupt(self, serving: Serving) -> None:
        try:
            await serving.client.interrupt()
        except ReplicaLost as lost:
            await self._leave(serving, lost)

    async def _watch(self, serving: Serving) -> None:
        reason = await serving.silent()
        if reason:
            await self._lose(serving.endpoint, reason)

    def _accepted(self, generations: list[Generation]) -> list[Generation]:
        """The responses. Raises ReplicaLost for incomplete ones, unless they were interrupted on purpose."""
        if self._resumed.is_set() and any(g.finish_reason == "abort" for g in generations):
            raise ReplicaLost("it ended the request early")
        for generation in generations:
            self._slots.answered(len(generation.tokens))
        self.served = self.served.with_more(generations)
        return generations

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """A context that counts requests, so that `interrupt` knows when all are answered."""
        self._asked += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._asked -= 1
            if not self._asked:
                self._idle.set()

    def _tell(self) -> None:
        if self.count >= self._min:
            self._enough.set()
        else:
            self._enough.clear()
        assert self.changed, "the driver sets it before servers come"
        self.changed()
