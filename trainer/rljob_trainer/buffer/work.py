"""Where evaluations and batches come from: the rollouts, or recorded batches."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Batch
from rljob_trainer.buffer.assembly import assemble, failure_metrics, require_scored, shaped
from rljob_trainer.buffer.batch_files import record, replay
from rljob_trainer.buffer.generation import Generator, warn_of_failures
from rljob_trainer.buffer.groups import Groups
from rljob_trainer.buffer.selection import Selection
from rljob_trainer.data.order import Cursor, prompt_at
from rljob_trainer.data.prompts import PromptSet
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.driver.rollouts import Rollouts
from rljob_trainer.reporting.samples import write_samples
from rljob_trainer.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Next:
    """A batch, and the data cursor once it is trained."""

    batch: Batch
    cursor: Cursor


class Source(Protocol):
    """Where batches and evaluations come from."""

    async def evaluate(self) -> dict[str, float]:
        """Metrics of the held-out prompts; empty when there is nothing to evaluate with."""
        ...

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Next:
        """The batch of `step`, drawn while the rollouts serve the policy of step `policy`."""
        ...


class Replayed:
    """Recorded batches. Needs no rollouts, and does not evaluate."""

    def __init__(self, spec: RLJobSpec, prompts: PromptSet):
        assert spec.train.batches.replay is not None
        self._spec, self._prompts, self._directory = spec, prompts, Path(spec.train.batches.replay)

    async def evaluate(self) -> dict[str, float]:
        return {}

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Next:
        positions, after = cursor.draw(self._spec.train.prompts_per_step)
        return Next(replay(self._directory, step), after.use(positions))


class Generated:
    """Fresh batches from the rollout pool, begun when minReplicas have the policy. `phase` is told what goes on."""

    def __init__(
        self,
        spec: RLJobSpec,
        train: PromptSet,
        validation: PromptSet,
        tokenizer: Tokenizer,
        generator: Generator,
        rollouts: Rollouts,
        phase: Callable[[str], None],
    ):
        self._spec, self._train, self._validation, self._tokenizer = spec, train, validation, tokenizer
        self._generator, self._rollouts, self._phase = generator, rollouts, phase
        self._groups = Groups(spec.train, generator)

    async def evaluate(self) -> dict[str, float]:
        if not self._validation:
            return {}
        self._phase("evaluating")
        await self._rollouts.enough()
        outcomes = await self._generator.evaluate(self._validation)
        require_scored(outcomes)
        rewards = [o.result.reward for o in outcomes if isinstance(o.result, Trajectory)]
        return {
            "evaluation/reward": sum(rewards) / len(rewards),
            "evaluation/failed": float(len(outcomes) - len(rewards)),
        }

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Next:
        self._phase("generating")
        await self._rollouts.enough()
        spec, train = self._spec, self._spec.train
        began, redispatched = time.monotonic(), self._rollouts.pool.redispatched
        selection, after = await self._draw(step, policy, cursor)
        metrics = {
            "time/generate": time.monotonic() - began,
            "rollout/redispatched": float(self._rollouts.pool.redispatched - redispatched),
            "data/epoch": after.epoch(self._train),
            "data/too_long": float(self._train.counts.too_long),
            "data/duplicates": float(self._train.counts.duplicates),
        }
        metrics |= failure_metrics(selection.failed) | selection.metrics()
        chosen, lost = shaped(selection.chosen(), spec)
        kept = train.partial_rollouts
        policies = range(step - 1 - kept.max_age if kept else policy, policy + 1)
        batch = assemble(step, policies, train.prompts_per_step, train.samples_per_prompt, chosen, metrics | lost)
        root = Path(spec.checkpoint.path)
        write_samples(root, batch, self._tokenizer)
        if train.batches.record:
            record(root, batch)
        return Next(batch, after)

    async def _draw(self, step: int, policy: int, cursor: Cursor) -> tuple[Selection, Cursor]:
        """Rounds of generation until the step is full, and the cursor behind them.

        Prompts that are left out are used up as well; those whose groups go on in the next step are not.
        """
        spec, train = self._spec, self._spec.train
        selection = Selection(spec)
        while not selection.is_full:
            positions, cursor = cursor.draw(train.prompts_begun)
            prompts = {p: prompt_at(p, spec.data, self._train) for p in positions}
            groups = await self._groups.draw(step, policy, prompts)
            outcomes = [o.at(g) for g, group in enumerate(groups.values(), selection.generated) for o in group]
            warn_of_failures(outcomes)
            selection.add(outcomes)
            cursor = cursor.use(groups if train.partial_rollouts else positions)
        return selection, cursor
