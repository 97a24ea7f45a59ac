"""When the policy of a step is evaluated, and on what: rollouts answer held-out prompts, ranks measure held-out examples."""

import asyncio
from collections.abc import Callable

from rljob_api.spec import RLJobSpec
from rljob_trainer.driver.buffer.examples import Examples
from rljob_trainer.driver.buffer.sources import BatchSource
from rljob_trainer.driver.reporter import Reporter
from rljob_trainer.wire.batch import Batch


class Evaluation:
    """The driver's part of an evaluation."""

    def __init__(
        self, spec: RLJobSpec, source: BatchSource | Examples, reporter: Reporter, changed: Callable[[], None]
    ):
        """`changed` is called when `held_out` has a batch."""
        self._spec, self._source, self._reporter, self._changed = spec, source, reporter, changed
        self._held_out: asyncio.Task[Batch] | None = None

    def is_due(self, step: int) -> bool:
        """Whether the policy of `step` is to be evaluated. A resumed attempt does not repeat an evaluation, except with evaluation.only."""
        if self._spec.evaluation.only:
            return True
        every = self._spec.evaluation.every_steps
        due = every > 0 and (step % every == 0 or step >= self._spec.train.total_steps)
        return due and not self._reporter.was_evaluated(step)

    async def by_rollouts(self, step: int) -> None:
        """Evaluate the policy of `step` with the rollouts, if that is due."""
        assert not isinstance(self._source, Examples), "rollouts answer held-out prompts"
        if self.is_due(step) and (metrics := await self._source.evaluate()):
            self._reporter.record_evaluation(step, metrics)

    def begin(self) -> None:
        """Prepare the held-out examples, once per attempt."""
        assert isinstance(self._source, Examples), "the ranks evaluate what is given"
        if self._held_out is None:
            self._held_out = asyncio.create_task(self._source.held_out_batch())
            self._held_out.add_done_callback(lambda _: self._changed())

    def held_out(self) -> Batch | None:
        """The held-out examples; None while they are prepared. Raises what `held_out_batch` raised."""
        assert self._held_out is not None, "`begin` comes first"
        return self._held_out.result() if self._held_out.done() else None
