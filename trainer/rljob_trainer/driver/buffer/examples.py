"""Batches of supervised tasks. Worker processes tokenise the examples of the next steps while a step trains."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from rljob_api.spec import RLJobSpec
from rljob_trainer.data.examples import Example, ExampleSet
from rljob_trainer.data.order import Cursor
from rljob_trainer.driver.buffer.measured import Measure, measured
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.driver.done import when_done
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory

AHEAD = 2
"""Batches that are prepared ahead."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Training and held-out data of a supervised task."""

    train: ExampleSet
    held_out: ExampleSet | None
    """None: there is none."""
    roles: Sequence[Measure] = ()
    """Models on other gangs, each of which measures every batch."""

    async def held_out_batch(self) -> Batch:
        """All held-out examples, once each, in the order of the files. Raises ConfigurationError when all are left out."""
        assert self.held_out is not None, "a rule says that there is held-out data"
        examples = [example for example in await self.held_out.drawn(range(len(self.held_out))) if example.variants]
        if not examples:
            raise _nothing(len(self.held_out), "validation")
        return await self.measured(Batch.of(0, trajectories(examples), {}))

    async def measured(self, batch: Batch) -> Batch:
        """The batch with the measurements of the roles."""
        return await measured(batch, self.roles) if self.roles else batch

    def close(self) -> None:
        """Stop reading ahead."""
        for data in filter(None, (self.train, self.held_out)):
            data.close()


class ExampleBuffer:
    """The batches after `step`, from `cursor` on. `changed` is called when `take` or `is_idle` may answer otherwise."""

    def __init__(self, spec: RLJobSpec, data: Examples, changed: Callable[[], None], step: int, cursor: Cursor):
        self._spec, self._data, self._changed = spec, data, changed
        self._made, self._cursor = step, cursor
        self._batches: deque[Ready] = deque()
        self._room = asyncio.Event()
        self._work = asyncio.create_task(self._fill())
        when_done(self._work, changed)

    def take(self) -> Ready | None:
        """Remove and return the next batch; None until it is ready."""
        ready = self._batches.popleft() if self._batches else None
        self._room.set()
        return ready

    @property
    def is_idle(self) -> bool:
        """There are no more batches. Raises what reading raised."""
        return not self._batches and self._work.done() and self._work.result() is None

    @property
    def is_measuring(self) -> bool:
        """Always False: batches are measured before they are in the buffer."""
        return False

    async def stop(self) -> None:
        """Stop reading."""
        self._work.cancel()
        await asyncio.wait([self._work])

    async def _fill(self) -> None:
        while self._made < self._spec.last_step:
            while len(self._batches) >= AHEAD:
                self._room.clear()
                await self._room.wait()
            ready = await next_batch(self._spec, self._data.train, self._made + 1, self._cursor)
            self._made, self._cursor = ready.batch.step, ready.cursor
            self._batches.append(Ready(await self._data.measured(ready.batch), ready.cursor))
            self._changed()


async def next_batch(spec: RLJobSpec, data: ExampleSet, step: int, cursor: Cursor) -> Ready:
    """The batch of the next samplesPerStep positions, without rows that are left out. If all are left out, of those that follow.

    Raises ConfigurationError when all rows of a whole epoch are left out.
    """
    began, first, examples = time.monotonic(), cursor.consumed, list[Example]()
    while not examples:
        if cursor.consumed - first >= len(data) + spec.train.samples_per_step:
            raise _nothing(len(data))
        positions, cursor = cursor.draw(spec.train.samples_per_step)
        examples = [example for example in await data.drawn(positions) if example.variants]
        cursor = cursor.use(positions)
    of_step = {
        "data/epoch": cursor.epoch(data),
        "data/samples": float(len(examples)),
        "time/tokenise": time.monotonic() - began,
    }
    return Ready(Batch.of(step, trajectories(examples), data.counts.metrics() | of_step), cursor)


def trajectories(examples: Iterable[Example]) -> Sequence[Trajectory]:
    """One trajectory for each variant of each example; an example is a group."""
    groups = zip(count(), examples)
    return [_trajectory(example, group, i) for group, example in groups for i in range(len(example.variants))]


def _trajectory(example: Example, group: int, sample: int) -> Trajectory:
    return Trajectory(
        segments=example.variants[sample],
        prompt_index=example.index,
        group=group,
        sample=sample,
        finish_reason="stop",
        reward=0.0,
        data_source=example.data_source,
    )


def _nothing(rows: int, split: str = "train") -> ConfigurationError:
    rule = f"each of its {rows} rows is left out: too long, empty, without a turn to learn, or a pair of equal answers"
    return ConfigurationError(f"spec.data.{split}", f"{rows} rows", rule, "see spec.data, or replace the files")
