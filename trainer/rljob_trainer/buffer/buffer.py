"""Batches that are ready to be trained, generated under one policy after the other."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rljob_api.spec import RLJobSpec
from rljob_trainer.buffer.measured import Measure, measured
from rljob_trainer.buffer.saved import BufferContents
from rljob_trainer.buffer.sources import BatchSource, Ready
from rljob_trainer.data.order import Cursor

__all__ = ["Ready", "RolloutBuffer"]


@dataclass(frozen=True, slots=True)
class _Made:
    """A batch that was generated."""

    ready: Ready
    measured: asyncio.Task[Ready]
    """By the roles: of its own, since another policy interrupts what is generated, and not this."""


class RolloutBuffer:
    """Under the policy of step p: evaluate it, then make every batch up to that of step p + 1 + staleness that is not there yet.

    With staleness 0 this is the batch of p + 1. With 1 it is that of p + 2, made while p + 1 trains; the first policy makes both.
    """

    def __init__(
        self,
        spec: RLJobSpec,
        source: BatchSource,
        evaluate: Callable[[int], Awaitable[None]],
        changed: Callable[[], None],
        step: int,
        cursor: Cursor,
        roles: Sequence[Measure] = (),
    ):
        """The batches after `step`, of the prompts from `cursor` on, each measured by all `roles`. `changed` is called when `take` or `may_stop` may
        answer otherwise."""
        self._source, self._evaluate, self._changed = source, evaluate, changed
        self._ahead, self._last, self._generates_on = 1 + spec.train.staleness, spec.last_step, spec.generates_on
        self._made, self._cursor = step, cursor
        self._roles = roles
        self._batches: deque[_Made] = deque()
        self._evaluated = False
        self._work: asyncio.Task[None] | None = None

    def restore(self, contents: BufferContents) -> None:
        """Continue with what an earlier attempt had made and begun."""
        self._batches.extend(map(self._measuring, contents.batches))
        if contents.batches:
            self._made, self._cursor = contents.batches[-1].batch.step, contents.batches[-1].cursor
        self._source.restore(contents.groups)

    @property
    def contents(self) -> BufferContents:
        """What there is now, for a checkpoint: batches as they were generated, and of responses under way what they had when the last policy was
        published."""
        return BufferContents(tuple(made.ready for made in self._batches), self._source.kept())

    def begin(self, policy: int) -> None:
        """Generate under the policy of this step. What was generated under the one before must have been stopped."""
        assert self._work is None, "one policy at a time"
        self._evaluated = False
        self._work = asyncio.create_task(self._fill(policy))
        self._work.add_done_callback(lambda _: self._changed())

    async def stop(self) -> None:
        """End what is generated under this policy. The prompts of a batch that is not complete come again under the next one; where groups are
        kept, behind what is there of their responses."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])
            await self._source.stop()

    @property
    def first(self) -> Ready | None:
        """What `take` will give."""
        complete = self._evaluated and self._batches and self._batches[0].measured.done()
        return self._batches[0].measured.result() if complete else None

    def take(self) -> Ready | None:
        """The next batch, once it is there and the policy that is to be trained with it has been evaluated."""
        if found := self.first:
            self._batches.popleft()
        return found

    @property
    def is_measuring(self) -> bool:
        """`take` will give a batch, as soon as the roles have measured it."""
        return self._evaluated and bool(self._batches)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do under this policy. Raises what went wrong."""
        return self._work is not None and self._work.done() and self._work.result() is None

    @property
    def may_stop(self) -> bool:
        """Another policy may come: this one has done what it has to, or responses continue under the next one. Raises what went wrong."""
        return self.is_idle or self._generates_on

    async def _fill(self, policy: int) -> None:
        await self._evaluate(policy)
        self._evaluated = True
        self._changed()
        while self._made < min(policy + self._ahead, self._last):
            found = await self._source.batch(self._made + 1, policy, self._cursor)
            self._made, self._cursor = found.batch.step, found.cursor
            self._batches.append(self._measuring(found))

    def _measuring(self, found: Ready) -> "_Made":
        task = asyncio.create_task(self._measured(found))
        task.add_done_callback(lambda _: self._changed())
        return _Made(found, task)

    async def _measured(self, found: Ready) -> Ready:
        return Ready(await measured(found.batch, self._roles), found.cursor) if self._roles else found
