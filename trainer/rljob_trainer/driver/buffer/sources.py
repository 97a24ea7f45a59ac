"""Where RL batches come from: the rollouts, or batches that an earlier run recorded."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from rljob_api.metrics import DATA_SOURCES, REWARD_METRICS
from rljob_api.spec import RLJobSpec
from rljob_trainer.data.order import Cursor, prompt_at
from rljob_trainer.data.prompts import HeldOutSet, PromptSet
from rljob_trainer.data.tokenizer import Tokenizer
from rljob_trainer.driver.buffer.assembly import (
    Outcome,
    agent_metrics,
    assemble,
    begun_age,
    data_source_metrics,
    evaluation_metrics,
    failure_metrics,
    require_scored,
    reward_details,
    reward_metrics,
    shaped,
)
from rljob_trainer.driver.buffer.batch_files import record, replay
from rljob_trainer.driver.buffer.generation import Generator, warn_of_failures
from rljob_trainer.driver.buffer.groups import Groups, PromptGroup
from rljob_trainer.driver.buffer.selection import Selection
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.reporting.samples import PROMPTS, Scored, write_samples
from rljob_trainer.reporting.timeline import Timeline
from rljob_trainer.wire.batch import Batch


@dataclass(frozen=True, slots=True)
class Ready:
    """A batch that can be trained, and the data cursor to continue from once it has been."""

    batch: Batch
    cursor: Cursor


class BatchSource(Protocol):
    """What the RolloutBuffer asks for batches."""

    async def evaluate(self) -> dict[str, float]:
        """Metrics of the held-out prompts under the current policy; empty when there are none."""
        ...

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Ready:
        """The batch of `step`, while the rollouts serve the policy of step `policy`."""
        ...

    async def stop(self) -> None:
        """Stop generating under this policy. Unfinished groups that are kept continue with the next batch."""
        ...

    def kept(self) -> list[PromptGroup]:
        """Groups that are not in a batch yet, as far as they have been generated, for a checkpoint."""
        ...

    def restore(self, groups: Sequence[PromptGroup]) -> None:
        """Continue these groups of an earlier attempt."""
        ...


class RecordedBatches:
    """Replays recorded batches (train.batches.replay), without rollouts and without evaluation."""

    def __init__(self, spec: RLJobSpec):
        assert spec.train.batches.replay is not None
        self._spec, self._directory = spec, Path(spec.train.batches.replay)

    async def evaluate(self) -> dict[str, float]:
        return {}

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Ready:
        positions, after = cursor.draw(self._spec.train.prompts_per_step)
        temperature = self._spec.rollout.sampling.temperature
        return Ready(await asyncio.to_thread(replay, self._directory, step, temperature), after.use(positions))

    async def stop(self) -> None: ...

    def kept(self) -> list[PromptGroup]:
        return []

    def restore(self, groups: Sequence[PromptGroup]) -> None: ...


class GeneratedBatches:
    """Batches from the rollout pool. Generation starts once minReplicas have the policy. `phase` is called with `evaluating` or `generating`."""

    def __init__(
        self,
        spec: RLJobSpec,
        train: PromptSet,
        held_out: Sequence[HeldOutSet],
        tokenizer: Tokenizer,
        generator: Generator,
        rollouts: RolloutPool,
        phase: Callable[[str], None],
        timeline: Timeline | None = None,
    ):
        self._spec, self._train, self._held_out, self._tokenizer = spec, train, held_out, tokenizer
        self._generator, self._rollouts, self._phase = generator, rollouts, phase
        self._groups = Groups(spec, generator)
        self._timeline = timeline or Timeline()
        self._phases: list[str] = []
        """Of what is under way."""

    async def evaluate(self) -> dict[str, float]:
        if not self._held_out:
            return {}
        with self._shown("evaluating"):
            await self._rollouts.enough()
            outcomes = await self._generator.evaluate(self._held_out)
        require_scored([o for groups in outcomes.values() for group in groups for o in group])
        return evaluation_metrics(outcomes, self._spec.evaluation.correct_above)

    async def batch(self, step: int, policy: int, cursor: Cursor) -> Ready:
        with self._shown("generating"):
            return await self._batch(step, policy, cursor)

    async def _batch(self, step: int, policy: int, cursor: Cursor) -> Ready:
        await self._rollouts.enough()
        began, redispatched, served = time.monotonic(), self._rollouts.redispatched, self._rollouts.served
        selection, after = await self._select(step, policy, cursor)
        waiting = len(self._groups.complete) - len(selection.chosen) - len(selection.useless)
        await self._groups.leave(step)
        seconds = time.monotonic() - began
        metrics = {
            "time/generate": seconds,
            "rollout/groups_waiting": float(waiting),
            "rollout/redispatched": float(self._rollouts.redispatched - redispatched),
            "data/epoch": after.epoch(self._train),
            "data/too_long": float(self._train.counts.too_long),
            "data/duplicates": float(self._train.counts.duplicates),
        } | self._rollouts.served.metrics(served, seconds)
        assembling = asyncio.ensure_future(asyncio.to_thread(self._assembled, step, policy, selection, metrics))
        try:
            batch = await asyncio.shield(assembling)
        except asyncio.CancelledError:
            # the groups stay complete and make the same batch again; until then the thread, which cannot be stopped, writes into its files
            await asyncio.wait([assembling])
            raise
        self._groups.remove([*selection.chosen, *selection.useless])
        return Ready(batch, after)

    async def stop(self) -> None:
        await self._groups.stop()

    def kept(self) -> list[PromptGroup]:
        return self._groups.kept

    def restore(self, groups: Sequence[PromptGroup]) -> None:
        self._groups.restore(groups, {g.position: prompt_at(g.position, self._spec.data, self._train) for g in groups})

    @contextmanager
    def _shown(self, phase: str) -> Iterator[None]:
        """Show what is under way: the evaluation, as long as that is, since the next policy waits for it. The last phase stays."""
        self._phases.append(phase)
        try:
            self._phase(min(self._phases))
            with self._timeline.working("driver", phase):
                yield
        finally:
            self._phases.remove(phase)
            if self._phases:
                self._phase(self._phases[0])

    async def _select(self, step: int, policy: int, cursor: Cursor) -> tuple[Selection, Cursor]:
        """Run rounds of generation until the step is full. Returns the selected groups, and the data cursor after them.

        Prompts whose groups were rejected count as used; those whose groups continue in the next step do not.
        """
        spec, groups, selection = self._spec, self._groups, Selection(self._spec)
        groups.resume()
        cursor = cursor.including(groups.positions)  # groups may be left from a batch that a new policy interrupted
        full = False
        while not full:
            positions, cursor = cursor.draw(self._under_way(step, policy))
            groups.begin(step, policy, {p: prompt_at(p, spec.data, self._train) for p in positions})
            selection.begin_round(len(groups.positions))
            waits = groups.waits(step)
            full = selection.choose(groups.complete, waits)
            while not full and not selection.round_is_over:
                await groups.changed()
                full = selection.choose(groups.complete, waits)
            used = [*selection.chosen, *selection.useless]
            cursor = cursor.use(used if spec.keeps_groups else positions)
        return selection, cursor

    def _under_way(self, step: int, policy: int) -> int:
        """Prompts that may be in generation while the batch of `step` is made: those of this step, or, where generation continues across
        updates, of all steps that this policy may generate for."""
        spec = self._spec
        last = min(policy + 1 + spec.train.staleness, spec.last_step) if spec.generates_on else step
        return (last - step + 1) * spec.train.prompts_begun

    def _assembled(self, step: int, policy: int, selection: Selection, metrics: dict[str, float]) -> Batch:
        """The batch, its metrics and its files. Runs in a thread: for a large step it takes seconds, in which generation continues."""
        spec, train = self._spec, self._spec.train
        policies = range(step - 1 - spec.max_age, policy + 1)
        outcomes = [o.at(number) for number, group in enumerate(selection.chosen.values()) for o in group]
        warn_of_failures(outcomes)
        chosen, penalty = shaped(outcomes, spec)
        metrics = (
            metrics
            | failure_metrics(selection.failed, spec.rollout.agent is not None)
            | agent_metrics(outcomes)
            | selection.metrics()
            | reward_metrics(REWARD_METRICS, outcomes)
            | data_source_metrics(DATA_SOURCES, chosen)
            | penalty
            | {"train_rollout/begun_age": begun_age(step, chosen)}
        )
        batch = assemble(step, policies, train.prompts_per_step, train.samples_per_prompt, chosen, metrics)
        root = Path(spec.checkpoint.path)
        write_samples(root, batch, self._tokenizer, self._details(selection, chosen), self._train.reader)
        if train.batches.record:
            record(root, batch, spec.rollout.sampling.temperature)
        return batch

    def _details(self, selection: Selection, chosen: Sequence[Outcome]) -> Scored:
        """Of the samples that are kept as text."""
        logged = islice(selection.chosen, PROMPTS)
        answers = [prompt_at(position, self._spec.data, self._train).answer for position in logged]
        return {(o.group, o.sample): reward_details(o, answers[o.group]) for o in chosen if o.group < len(answers)}
