"""The driver's connection to a rollout server that has the current policy, and what all of them have answered, in numbers."""

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from rljob_api.protocol import RolloutEndpoint
from rljob_trainer.driver.slots import LoadedServer
from rljob_trainer.wire.rollout_client import Generation, ReplicaLost, RolloutClient
from rljob_trainer.wire.weights.protocol import AttemptSuperseded

WATCH_SECONDS = 5.0
"""Interval of probes of a server that has requests."""
MISSES = 3
"""Probes in a row that a server may leave unanswered before its requests are sent elsewhere."""


@dataclass(eq=False, kw_only=True)
class Serving(LoadedServer):
    """One connection, from when the server comes into the pool until it is taken out."""

    client: RolloutClient
    gone: asyncio.Future[str]
    """Set to the reason when the server is taken out of the pool."""
    misses: int = 0
    """Probes in a row that it has left unanswered."""
    watcher: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> RolloutEndpoint:
        return self.client.endpoint

    async def unless_gone[T](self, answer: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises ReplicaLost when the server is taken out of the pool first."""
        call: asyncio.Future[Any] = asyncio.ensure_future(answer)
        try:
            await asyncio.wait({call, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            raise ReplicaLost(self.gone.result())
        finally:
            call.cancel()

    async def silent(self) -> str:
        """Probe the server until it leaves probes unanswered, and return what to say then: a frozen pod otherwise looks like a slow one. (A frozen
        server in a working pod is restarted there, by health.py.) Empty: the attempt is superseded, which the next request raises to its caller."""
        while self.misses < MISSES:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.client.state()
                self.misses = 0
            except AttemptSuperseded:
                return ""
            except ReplicaLost:
                self.misses += 1
        return f"left {MISSES} questions unanswered"


@dataclass(frozen=True, slots=True)
class Served:
    """Sums over all responses so far."""

    tokens: int = 0
    passes: int = 0
    """Those that read guessed tokens."""
    right: int = 0
    """Guesses that the policy took."""

    def with_more(self, answers: Iterable[Generation]) -> "Served":
        found = list(answers)
        return Served(
            self.tokens + sum(len(g.tokens) for g in found),
            self.passes + sum(g.guesses[0] for g in found),
            self.right + sum(g.guesses[1] for g in found),
        )

    def metrics(self, before: "Served", seconds: float) -> dict[str, float]:
        """Of what came since `before`, in so many seconds."""
        found = {"rollout/tokens_per_s": (self.tokens - before.tokens) / seconds} if seconds else {}
        passes, right = self.passes - before.passes, self.right - before.right
        return found | ({"rollout/acceptance_length": 1 + right / passes} if passes else {})
