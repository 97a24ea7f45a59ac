"""Samples that clients wait for, and their answers. They are kept in memory only: a client asks again for what a gateway that was restarted does not
know."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rljob_api.callbacks import nothing
from rljob_trainer.gateway.clients import BusyError
from rljob_trainer.gateway.completions import Completions, number_of, queue_of
from rljob_trainer.gateway.listening import ListeningClock
from rljob_trainer.gateway.registry import session_of
from rljob_trainer.gateway.servers import MOST_OPEN
from rljob_trainer.gateway.service import GRACE_SECONDS, UnknownError
from rljob_trainer.wire.rollout_client import ReplicaLost, RequestRefusedError
from rljob_trainer.wire.rollout_server import SampleAnswer, SampleRequest
from rljob_trainer.wire.service import WorkFailure

REQUEST_BYTES = 8 * 2**10
"""Of a request besides its tokens and its answer, in this process (tests/trainer/gateway/test_many_futures.py)."""
MOST_ANSWERS = 128 * 2**20
"""Bytes of a client's requests and answers, beyond which answers that it has fetched are dropped, old ones first."""
ABORT_SECONDS = 10.0
"""After which a server has heard that nobody waits for samples any more, and reads their snapshot no more."""

log = logging.getLogger(__name__)


@dataclass
class _Sampling:
    client: str
    directory: str
    """Of the snapshot; empty: the base model."""
    task: asyncio.Task[SampleAnswer | WorkFailure]
    size: int
    """Bytes that it holds."""
    fetched: float | None = None
    """When the client got the answer first, by the ListeningClock."""
    finished: float | None = None
    """When the answer came, by the ListeningClock."""


class Samples:
    """Requests for samples, by the name that the client knows."""

    def __init__(
        self,
        sample: Callable[[SampleRequest], Awaitable[SampleAnswer]],
        clock: ListeningClock,
        count: Callable[[int], None] = nothing,
    ) -> None:
        """`count`: called with the number of tokens of each answer."""
        self._sample, self._clock, self._count = sample, clock, count
        self._known: dict[str, _Sampling] = {}
        self._fetched = defaultdict[str, dict[str, None]](dict)
        """By client: requests whose answer it has fetched, in that order."""
        self.held = Counter[str]()
        """Bytes of prompts and answers, by client."""
        self.completions = Completions()
        self._read_until = dict[str, float]()
        """Directories of snapshots from which samples were cancelled, by the monotonic clock."""
        self._open = Counter[str]()
        """Requests that have no answer yet, by client."""

    def ask(self, client: str, name: str, request: SampleRequest | WorkFailure, directory: str = "") -> None:
        """Begin. A name that is known already is the same request. `directory`: of the sampler. Raises BusyError: a client has at most as many places
        as are free, so that there are always some for another one."""
        if name in self._known:
            return
        if self._open[client] >= MOST_OPEN - self.waiting:
            own, free = self._open[client], MOST_OPEN - self.waiting
            raise BusyError(
                f"{own} samples of this client are waiting, and there are {free} further places: as many at least stay free for others"
            )
        size = REQUEST_BYTES + (0 if isinstance(request, WorkFailure) else 8 * len(request.tokens))
        self._known[name] = _Sampling(client, directory, asyncio.create_task(self._run(client, name, request)), size)
        self.held[client] += size

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return self._open.total()

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
        known.fetched = self._clock.seconds if known.fetched is None else known.fetched
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
        now = self._clock.seconds
        for name, known in list(self._known.items()):
            since = known.finished if known.fetched is None else known.fetched
            if since is not None and now - since > GRACE_SECONDS:
                self._forget(name)

    async def close(self) -> None:
        tasks = [known.task for known in self._known.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, client: str, name: str, request: SampleRequest | WorkFailure) -> SampleAnswer | WorkFailure:
        self._open[client] += 1
        failed = True
        try:
            answer = request if isinstance(request, WorkFailure) else await self._answer(name, request)
            failed = isinstance(answer, WorkFailure)
            return answer
        finally:
            self._open[client] -= 1
            known = self._known.get(name)
            if known and known.task is asyncio.current_task():  # else it was cancelled, and perhaps asked for again
                known.finished = self._clock.seconds
                self.completions.add(name, failed)

    async def _answer(self, name: str, request: SampleRequest) -> SampleAnswer | WorkFailure:
        try:
            answer = await self._sample(request)
        except RequestRefusedError as error:
            return WorkFailure(message=str(error))
        except ReplicaLost as error:
            return WorkFailure(message=str(error), category="server")
        except Exception as error:  # clients repeat at once, and for ever, what is not answered
            log.exception("%s", name)
            return WorkFailure(message=f"{type(error).__name__}: {error}", category="server")
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
