"""Samples that clients wait for. They are kept in memory only: a client asks again for what a gateway that was restarted does not know."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rljob_trainer.gateway.service import GRACE_SECONDS, BusyError, UnknownError
from rljob_trainer.wire.rollout_client import ReplicaLost, RequestRefusedError
from rljob_trainer.wire.sample import SampleAnswer, SampleRequest
from rljob_trainer.wire.service import Failure

MOST_OPEN = 10_000
"""Requests that wait for a server."""


@dataclass
class _Sampling:
    client: str
    task: asyncio.Task[SampleAnswer | Failure]
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
        self._open = 0

    def ask(self, client: str, name: str, request: SampleRequest | Failure) -> None:
        """Begin. A name that is known already is the same request. Raises BusyError."""
        if name in self._known:
            return
        if self._open >= MOST_OPEN:
            raise BusyError(f"{MOST_OPEN} requests for samples are waiting")
        self._known[name] = _Sampling(client, asyncio.create_task(self._run(name, request)))

    @property
    def waiting(self) -> int:
        """Requests that have no answer yet."""
        return self._open

    async def result(self, client: str, name: str, seconds: float) -> SampleAnswer | Failure | None:
        """The answer, which is waited for; None: there is none yet. Raises UnknownError."""
        known = self._known.get(name)
        if known is None or known.client != client:
            raise UnknownError(f"there is no request {name}")
        await asyncio.wait({known.task}, timeout=seconds)
        if not known.task.done():
            return None
        known.fetched = time.monotonic() if known.fetched is None else known.fetched
        return known.task.result()

    def cancel(self, client: str, name: str) -> None:
        """The client does not want it any more."""
        known = self._known.get(name)
        if known and known.client == client:
            known.task.cancel()
            del self._known[name]

    def sweep(self) -> None:
        """Forget answers that were fetched, and those that nobody fetches."""
        now = time.monotonic()
        for name, known in list(self._known.items()):
            since = known.finished if known.fetched is None else known.fetched
            if since is not None and now - since > GRACE_SECONDS:
                del self._known[name]

    async def close(self) -> None:
        tasks = [known.task for known in self._known.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, request: SampleRequest | Failure) -> SampleAnswer | Failure:
        self._open += 1
        try:
            if isinstance(request, Failure):
                return request
            answer = await self._sample(request)
            self._count(sum(len(sample.tokens) for sample in answer.samples))
            return answer
        except RequestRefusedError as error:
            return Failure(message=str(error))
        except ReplicaLost as error:
            return Failure(message=str(error), category="server")
        finally:
            self._open -= 1
            if name in self._known:
                self._known[name].finished = time.monotonic()
