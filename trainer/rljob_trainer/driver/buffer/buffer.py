"""The rollout buffer: generates batches up to `staleness` steps ahead of the trainer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver.buffer.measured import Measure, measured
from rljob_trainer.driver.buffer.saved import BufferContents
from rljob_trainer.driver.buffer.sources import BatchSource, Ready
from rljob_trainer.driver.done import when_done

__all__ = ["Ready", "RolloutBuffer"]


@dataclass(frozen=True, slots=True)
class _Generated:
    """A generated batch."""

    ready: Ready
    measured: asyncio.Task[Ready]
    """Adds the measurements of the roles. A task of its own, because a new policy interrupts generation but not this."""


class RolloutBuffer:
    """Under the policy of step p, generates all missing batches up to that of step p + 1 + staleness, and evaluates the policy at the same time if
    that is due.

    With staleness 0 that is the batch of p + 1. With staleness 1 it is that of p + 2, generated while p + 1 trains; the first policy generates
    both.
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
        """
        Args:
            evaluate: evaluates the policy of a step, if that is due
            changed: called when the result of `take`, `is_idle` or `may_stop` may have changed
            step, cursor: the first batch is that of `step` + 1, of the prompts from `cursor` on
            roles: each measures every batch
        """
        self._source, self._evaluate, self._changed = source, evaluate, changed
        self._ahead, self._last, self._generates_on = 1 + spec.train.staleness, spec.last_step, spec.generates_on
        self._generated, self._cursor = step, cursor
        self._roles = roles
        self._batches: deque[_Generated] = deque()
        self._sleeps = spec.rollout.placement == "colocated"
        self._evaluated = False
        self._work: asyncio.Task[None] | None = None

    def restore(self, contents: BufferContents) -> None:
        """Continue with the batches and groups of an earlier attempt."""
        self._batches.extend(map(self._measuring, contents.batches))
        if contents.batches:
            self._generated, self._cursor = contents.batches[-1].batch.step, contents.batches[-1].cursor
        self._source.restore(contents.groups)

    @property
    def contents(self) -> BufferContents:
        """What a checkpoint saves: the batches as they were generated, without measurements, and the groups in generation."""
        return BufferContents(tuple(generated.ready for generated in self._batches), self._source.kept())

    def begin(self, policy: int) -> None:
        """Evaluate and generate under the policy of this step, after `stop` or `leave` under the previous one."""
        assert self._work is None, "one policy at a time"
        self._evaluated = False
        self._work = asyncio.create_task(self._fill(policy))
        when_done(self._work, self._changed)

    async def stop(self) -> None:
        """Stop generating under this policy. An incomplete batch is begun anew under the next one, or, where groups are kept, continued from the
        tokens generated so far."""
        await self.leave()
        await self._source.stop()

    async def leave(self) -> None:
        """Make no more batches under this policy, and begin no more groups. Those that were begun are generated further."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            await asyncio.wait([work])

    @property
    def first(self) -> Ready | None:
        """The batch that `take` would return. Colocated servers sleep from then on, so that theirs waits until the policy is evaluated, too."""
        complete = not self._is_needed and self._batches and self._batches[0].measured.done()
        return self._batches[0].measured.result() if complete else None

    def take(self) -> Ready | None:
        """Remove and return the next batch; None until it is measured."""
        ready = self.first
        if ready:
            self._batches.popleft()
        return ready

    @property
    def is_measuring(self) -> bool:
        """A batch has been generated, and `take` returns it as soon as the roles have measured it."""
        return bool(self._batches) and not self._is_needed

    @property
    def _is_needed(self) -> bool:
        """Whether servers that would have to sleep still generate or evaluate."""
        return self._sleeps and self._work is not None and not self._work.done()

    @property
    def is_idle(self) -> bool:
        """Nothing is left to generate or evaluate under this policy. Raises what generation or evaluation raised."""
        return self._work is not None and self._work.done() and self._work.result() is None

    @property
    def may_stop(self) -> bool:
        """A new policy may be published: this one is evaluated, and has nothing left to generate or generation continues across updates. Raises as
        `is_idle`."""
        return self.is_idle or (self._evaluated and self._generates_on)

    async def _fill(self, policy: int) -> None:
        work = [asyncio.create_task(self._evaluation(policy)), asyncio.create_task(self._generation(policy))]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _evaluation(self, policy: int) -> None:
        await self._evaluate(policy)
        self._evaluated = True
        self._changed()

    async def _generation(self, policy: int) -> None:
        while self._generated < min(policy + self._ahead, self._last):
            ready = await self._source.batch(self._generated + 1, policy, self._cursor)
            self._generated, self._cursor = ready.batch.step, ready.cursor
            self._batches.append(self._measuring(ready))

    def _measuring(self, ready: Ready) -> "_Generated":
        task = asyncio.create_task(self._measured(ready))
        when_done(task, self._changed)
        return _Generated(ready, task)

    async def _measured(self, ready: Ready) -> Ready:
        return Ready(await measured(ready.batch, self._roles), ready.cursor) if self._roles else ready
