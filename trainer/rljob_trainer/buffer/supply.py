"""The batches that training goes on with, drawn under one policy after the other."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from rljob_api.spec import RLJobSpec
from rljob_trainer.buffer.work import Next, Source
from rljob_trainer.data.order import Cursor


class Supply:
    """Under the policy of step p: evaluate it, then make every batch up to that of step p + 1 + staleness that is not there yet.

    With staleness 0 this is the batch of p + 1. With 1 it is that of p + 2, made while p + 1 trains; the first policy makes both.
    """

    def __init__(
        self,
        spec: RLJobSpec,
        source: Source,
        evaluate: Callable[[int], Awaitable[None]],
        changed: Callable[[], None],
        step: int,
        cursor: Cursor,
    ):
        """The batches after `step`, of the prompts from `cursor` on. `changed` is called when `take` or `done` may answer otherwise."""
        self._source, self._evaluate, self._changed = source, evaluate, changed
        self._ahead, self._last = 1 + spec.train.staleness, spec.train.steps
        self._made, self._cursor = step, cursor
        self._batches: deque[Next] = deque()
        self.begin(step)

    def begin(self, policy: int) -> None:
        """Go on under the policy of this step. The work under the one before must have ended."""
        self._evaluated = False
        self._work = asyncio.create_task(self._do(policy))
        self._work.add_done_callback(lambda _: self._changed())

    async def stop(self) -> None:
        """End the work under this policy. The prompts of a batch that is not complete come again under the next one, with
        `partialRollouts` behind what is drawn of them."""
        self._work.cancel()
        await asyncio.wait([self._work])

    def take(self) -> Next | None:
        """The next batch, once it is there and the policy that is to be trained with it has been evaluated."""
        return self._batches.popleft() if self._evaluated and self._batches else None

    @property
    def done(self) -> bool:
        """Nothing is left to do under this policy. Raises what the work raised."""
        return self._work.done() and self._work.result() is None

    async def _do(self, policy: int) -> None:
        await self._evaluate(policy)
        self._evaluated = True
        self._changed()
        while self._made < min(policy + self._ahead, self._last):
            found = await self._source.batch(self._made + 1, policy, self._cursor)
            self._made, self._cursor = found.batch.step, found.cursor
            self._batches.append(found)
            self._changed()
