"""Samples that clients wait for, and the rollout servers that make them, as the driver lists these: each request goes to the one with the
fewest samples, and to another one when that is lost. Samples are kept in memory only: a client asks again for what a gateway that was restarted
does not know."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.gateway.clients import BusyError
from rljob_trainer.gateway.completions import Completions, number_of, queue_of
from rljob_trainer.gateway.policies import ServedPolicies
from rljob_trainer.gateway.registry import session_of
from rljob_trainer.gateway.service import GRACE_SECONDS, UnknownError
from rljob_trainer.machine import most_open_files
from rljob_trainer.wire.rollout_client import ReplicaLost, ReplicaUnreachable, RequestRefusedError, RolloutClient
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest
from rljob_trainer.wire.service import WorkFailure
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

RETRY_SECONDS = 1.0
"""Before a server that was lost is asked again."""
LONGEST_RETRY_SECONDS = 10.0
"""The same for a request that has lost several."""
MOST_SENT = 6
"""Servers that may be lost with a request: perhaps they end of it. One that ends answers for some seconds that it has failed."""
MOST_OPEN = 10_000
"""Requests that wait for a server."""
REQUEST_BYTES = 8 * 2**10
"""Of a request besides its tokens and its answer, in this process (tests/trainer/gateway/test_many_futures.py)."""
MOST_ANSWERS = 128 * 2**20
"""Bytes of a client's requests and answers, beyond which answers that it has fetched are dropped, old ones first."""
ABORT_SECONDS = 10.0
"""After which a server has heard that nobody waits for samples any more, and reads their snapshot no more."""


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
                listed = self._listed
                try:
                    return await self._asked(endpoint, listed.attempt, sent)
                except (ReplicaUnreachable, AttemptSuperseded):
                    if listed is self._listed:
                        self._avoided[endpoint.pod_uid] = time.monotonic() + RETRY_SECONDS
                    self._lost(endpoint)
                except ReplicaLost:  # perhaps of this request: others still go there
                    lost += 1
                    self._lost(endpoint)
                    if lost == MOST_SENT:
                        raise
                    pause = min(RETRY_SECONDS * 2 ** (lost - 1), LONGEST_RETRY_SECONDS)
                    avoided[endpoint.pod_uid] = time.monotonic() + pause

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


@dataclass
class _Sampling:
    client: str
    directory: str
    """Of the snapshot; empty: the base model."""
    task: asyncio.Task[SampleAnswer | WorkFailure]
    size: int
    """Bytes that it holds."""
    fetched: float | None = None
    """When the client got the answer first."""
    finished: float | None = None


class Samples:
    """Requests for samples, by the name that the client knows."""

    def __init__(
        self, sample: Callable[[SampleRequest], Awaitable[SampleAnswer]], count: Callable[[int], None] = lambda _: None
    ) -> None:
        """`count`: called with the number of tokens of each answer."""
        self._sample, self._count = sample, count
        self._known: dict[str, _Sampling] = {}
        self._fetched = defaultdict[str, dict[str, None]](dict)
        """By client: requests whose answer it has fetched, in that order."""
        self.held = Counter[str]()
        """Bytes of prompts and answers, by client."""
        self.completions = Completions()
        self._read_until = dict[str, float]()
        """Directories of snapshots from which samples were cancelled, by the monotonic clock."""
        self._open = 0

    def ask(self, client: str, name: str, request: SampleRequest | WorkFailure, directory: str = "") -> None:
        """Begin. A name that is known already is the same request. `directory`: of the sampler. Raises BusyError."""
        if name in self._known:
            return
        if self._open >= MOST_OPEN:
            raise BusyError(f"{MOST_OPEN} requests for samples are waiting")
        size = REQUEST_BYTES + (0 if isinstance(request, WorkFailure) else 8 * len(request.tokens))
        self._known[name] = _Sampling(client, directory, asyncio.create_task(self._run(name, request)), size)
        self.held[client] += size

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return self._open

    @property
    def directories(self) -> set[str]:
        """Those that servers read now, or may still read."""
        now = time.monotonic()
        self._read_until = {directory: until for directory, until in self._read_until.items() if until > now}
        return {known.directory for known in self._known.values() if not known.task.done()}.union(self._read_until)

    async def result(self, client: str, name: str, seconds: float) -> SampleAnswer | WorkFailure | None:
        """The answer, which is waited for; None: there is none yet. Raises UnknownError."""
        known = self._known.get(name)
        if known is None or known.client != client:
            raise UnknownError(f"there is no request {name}")
        await asyncio.wait({known.task}, timeout=seconds)
        if not known.task.done():
            return None
        if known.task.cancelled():
            raise UnknownError(f"request {name} was cancelled")
        known.fetched = time.monotonic() if known.fetched is None else known.fetched
        self._fetched[client][name] = None
        self.completions.forget(name)
        return known.task.result()

    def has(self, name: str) -> bool:
        return name in self._known

    def oldest(self, queue: str) -> int:
        """The lowest number of a request of the queue whose answer was not fetched yet."""
        unfetched = (name for name, known in self._known.items() if known.fetched is None and queue_of(name) == queue)
        return min((number_of(name) for name in unfetched), default=0)

    def fetched(self, client: str, name: str) -> None:
        """The client has all of the answer."""
        known = self._known.get(name)
        if known and known.client == client and known.task.done():
            self._forget(name)

    def cancel(self, client: str, name: str) -> None:
        """The client does not want it any more."""
        known = self._known.get(name)
        if known and known.client == client:
            self._stop(name)

    async def end(self, session: str) -> None:
        """A session ends, and what it waits for."""
        names = [name for name in self._known if session_of(name) == session]
        tasks = [self._known[name].task for name in names]
        for name in names:
            self._stop(name)
        await asyncio.gather(*tasks, return_exceptions=True)
        self.completions.end(session)

    def _stop(self, name: str) -> None:
        known = self._forget(name)
        self.completions.forget(name)
        if not known.task.done():
            known.task.cancel()
            self._read_until[known.directory] = time.monotonic() + ABORT_SECONDS

    def sweep(self) -> None:
        """Forget answers that were fetched, and those that nobody fetches: who hears late that one is complete asks for it, and then again."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            since = known.finished if known.fetched is None else known.fetched
            if since is not None and now - since > GRACE_SECONDS:
                self._forget(name)

    async def close(self) -> None:
        tasks = [known.task for known in self._known.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, request: SampleRequest | WorkFailure) -> SampleAnswer | WorkFailure:
        self._open += 1
        failed = True
        try:
            answer = request if isinstance(request, WorkFailure) else await self._answer(name, request)
            failed = isinstance(answer, WorkFailure)
            return answer
        finally:
            self._open -= 1
            if name in self._known:
                self._known[name].finished = time.monotonic()
                self.completions.add(name, failed)

    async def _answer(self, name: str, request: SampleRequest) -> SampleAnswer | WorkFailure:
        try:
            answer = await self._sample(request)
        except RequestRefusedError as error:
            return WorkFailure(message=str(error))
        except ReplicaLost as error:
            return WorkFailure(message=str(error), category="server")
        self._count(sum(len(sample.tokens) for sample in answer.samples))
        self._hold(name, answer)
        return answer

    def _hold(self, name: str, answer: SampleAnswer) -> None:
        """An answer takes room, which answers have to give that were fetched."""
        known = self._known.get(name)
        if known:
            known.size += answer.size
            self.held[known.client] += answer.size
            if self.held[known.client] > MOST_ANSWERS:
                self._shed(known.client)

    def _shed(self, client: str) -> None:
        fetched = self._fetched[client]
        while fetched and self.held[client] > MOST_ANSWERS:
            self._forget(next(iter(fetched)))

    def _forget(self, name: str) -> _Sampling:
        known = self._known.pop(name)
        self._fetched[known.client].pop(name, None)
        self.held[known.client] -= known.size
        return known
