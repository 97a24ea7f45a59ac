"""What becomes of the policy of a step: which servers get it, and when it is evaluated, and on what. Rollouts answer held-out prompts, ranks
measure held-out examples."""

import asyncio
from collections.abc import Callable, Mapping

from rljob_api.protocol import RolloutEndpoint
from rljob_api.spec import RLJobSpec
from rljob_trainer.driver.buffer.examples import Examples
from rljob_trainer.driver.buffer.sources import BatchSource
from rljob_trainer.driver.done import when_done
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.reporter import Reporter
from rljob_trainer.wire.batch import Batch


class Recipients:
    """The driver's part of publishing: rank 0 asks for servers, sends them the policy, and says which of them have it."""

    def __init__(self, rollouts: RolloutPool, reporter: Reporter):
        self._rollouts, self._reporter = rollouts, reporter
        self._targets: list[RolloutEndpoint] = []
        self._step: int | None = None
        """Step of the last policy that was exported."""

    def begin(self) -> list[RolloutEndpoint]:
        """The servers that answer and need the policy. `finish` is about these."""
        self._targets = self._rollouts.to_publish()
        return self._targets

    def skip(self) -> None:
        """No server gets the policy."""
        self._targets = []

    @property
    def is_first(self) -> bool:
        """No server of this attempt had a policy before those of `begin`."""
        return bool(self._targets) and self._step is None

    async def finish(self, step: int, digest: str, failed: Mapping[str, str], seconds: float) -> None:
        """The policy of `step` was sent, in `seconds`. `failed`: pod -> why it does not have it. `digest`: empty if nothing was exported.
        Raises PolicyRejectedError."""
        targets, self._targets = self._targets, []
        self._reporter.published(step, digest)
        await self._rollouts.published(step, targets, failed)
        sync = {"time/sync": seconds} if digest and self._step != step else {}  # not a newcomer's
        self._step = step if digest else self._step
        self._reporter.record(step, sync | {"rollout/replicas": float(self._rollouts.count)})


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
        if not self.is_due(step):
            return
        metrics = await self._source.evaluate()
        if metrics:
            self._reporter.record_evaluation(step, metrics)

    def begin(self) -> None:
        """Prepare the held-out examples, once per attempt."""
        assert isinstance(self._source, Examples), "the ranks evaluate what is given"
        if self._held_out is None:
            self._held_out = asyncio.create_task(self._source.held_out_batch())
            when_done(self._held_out, self._changed)

    def held_out(self) -> Batch | None:
        """The held-out examples; None while they are prepared. Raises what `held_out_batch` raised."""
        assert self._held_out is not None, "`begin` comes first"
        return self._held_out.result() if self._held_out.done() else None
