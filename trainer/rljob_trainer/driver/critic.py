"""A critic on a gang of its own: it computes the values of a batch before rank 0 gets it, and learns from it while the policy does."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rljob_api import names
from rljob_trainer.driver.buffer.measured import joined
from rljob_trainer.driver.buffer.sources import Ready
from rljob_trainer.driver.gangs import Gang
from rljob_trainer.wire.batch import Batch


class Buffer(Protocol):
    """The part of RolloutBuffer that is needed."""

    @property
    def first(self) -> Ready | None: ...

    def take(self) -> Ready | None: ...


class Critic:
    """The driver's view of the critic. The order of requests: values of a batch, an update from it, perhaps a save, values of the next batch."""

    def __init__(self, gang: Gang, changed: Callable[[], None]):
        """`changed` is called when the result of `take`, `learnt` or `saved` may have changed."""
        self._gang, self._changed = gang, changed
        gang.wake = changed
        self._valuing: asyncio.Task[Ready] | None = None
        self._learning: asyncio.Future[dict[str, Any]] | None = None

    @property
    def is_idle(self) -> bool:
        """No batch is being valued."""
        return self._valuing is None

    def take(self, buffer: Buffer) -> Ready | None:
        """Remove the next batch from the buffer and return it with its values; None until they are computed."""
        if self._valuing is None:
            if found := buffer.first:
                self._valuing = asyncio.create_task(self._valued(found))
                self._valuing.add_done_callback(lambda _: self._changed())
            return None
        if not self._valuing.done():
            return None
        valued, self._valuing = self._valuing, None
        taken = buffer.take()
        assert taken and taken.batch.step == valued.result().batch.step, "nobody else takes batches"
        return valued.result()

    def restore(self, directory: Path) -> None:
        """Continue from the engine's part of a checkpoint."""
        self._gang.tell("restore", directory=directory)

    def learn(self, measured: Batch) -> None:
        """Begin to learn from the batch that was returned last. `measured`: its columns, and what the critic is to learn."""
        self._learning = self._gang.tell("learn", measured)
        self._learning.add_done_callback(lambda _: self._changed())

    def learnt(self) -> dict[str, float] | None:
        """The metrics of the last update; None until it is done."""
        assert self._learning, "it was given nothing to learn"
        return self._learning.result()["metrics"] if self._learning.done() else None

    def save(self, step: int, directory: Path, alongside: bool) -> None:
        """Begin to write its state after the last update."""
        self._gang.tell("save", step=step, directory=directory, alongside=alongside)

    def saved(self, step: int) -> dict[str, Any]:
        """{role: layout and files} of the save of this step; {}: it is not on the disk yet."""
        written = self._gang.written(step)
        return {names.ROLE_CRITIC: written} if written else {}

    def close(self) -> None:
        if self._valuing:
            self._valuing.cancel()

    async def _valued(self, found: Ready) -> Ready:
        return Ready(joined(found.batch, await self._gang.measure(found.batch)), found.cursor)
