"""What the driver does under one policy: evaluate when it is due, then make the next batch. Run as a task beside rank 0's calls."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import Sample, StepBatch
from rljob_trainer.data.order import Cursor
from rljob_trainer.data.prompts import PromptSet
from rljob_trainer.driver.assembly import assemble
from rljob_trainer.driver.generation import Generator
from rljob_trainer.driver.recording import record, replay
from rljob_trainer.driver.rollouts import Rollouts
from rljob_trainer.reward.case import RewardFailed


@dataclass(frozen=True, slots=True)
class Next:
    """A batch, and the data cursor once it is trained."""

    batch: StepBatch
    cursor: Cursor


class Source(Protocol):
    """Where batches and evaluations come from."""

    async def evaluate(self) -> dict[str, float]:
        """Metrics of the held-out prompts; empty when there is nothing to evaluate with."""
        ...

    async def batch(self, step: int, cursor: Cursor) -> Next: ...


class Replayed:
    """Recorded batches. Needs no rollouts, and does not evaluate."""

    def __init__(self, spec: RLJobSpec, prompts: PromptSet):
        assert spec.train.batches.replay is not None
        self._spec, self._prompts, self._directory = spec, prompts, Path(spec.train.batches.replay)

    async def evaluate(self) -> dict[str, float]:
        return {}

    async def batch(self, step: int, cursor: Cursor) -> Next:
        _, after = cursor.draw(self._spec.data, self._prompts, self._spec.train.prompts_per_step)
        return Next(replay(self._directory, step), after)


class Generated:
    """Fresh batches from the rollout pool, begun when minReplicas have the policy. `phase` is told what goes on."""

    def __init__(
        self,
        spec: RLJobSpec,
        train: PromptSet,
        validation: PromptSet,
        generator: Generator,
        rollouts: Rollouts,
        phase: Callable[[str], None],
    ):
        self._spec, self._train, self._validation = spec, train, validation
        self._generator, self._rollouts, self._phase = generator, rollouts, phase

    async def evaluate(self) -> dict[str, float]:
        if not self._validation.prompts:
            return {}
        self._phase("evaluating")
        await self._rollouts.enough()
        outcomes = await self._generator.evaluate(self._validation.prompts)
        rewards = [o.result.reward for o in outcomes if isinstance(o.result, Sample)]
        if not rewards:
            raise next(o.result for o in outcomes if isinstance(o.result, RewardFailed)).as_configuration()
        return {
            "evaluation/reward": sum(rewards) / len(rewards),
            "evaluation/failed": float(len(outcomes) - len(rewards)),
        }

    async def batch(self, step: int, cursor: Cursor) -> Next:
        self._phase("generating")
        await self._rollouts.enough()
        train = self._spec.train
        prompts, after = cursor.draw(self._spec.data, self._train, train.prompts_per_step)
        began, redispatched = time.monotonic(), self._rollouts.pool.redispatched
        outcomes = await self._generator.train(step, prompts)
        metrics = {
            "time/generate": time.monotonic() - began,
            "rollout/redispatched": float(self._rollouts.pool.redispatched - redispatched),
            "data/epoch": after.epoch(self._train),
        }
        batch = assemble(step, train.prompts_per_step, train.samples_per_prompt, outcomes, metrics)
        if train.batches.record:
            record(Path(self._spec.checkpoint.path), batch)
        return Next(batch, after)
