"""The driver's state, and its answers to the trainer's rank 0."""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from rljob_api import names
from rljob_api.protocol import Checkpoint, Control, RolloutEndpoint
from rljob_trainer.data.order import Cursor, Dataset
from rljob_trainer.driver.after_step import Evaluation, Recipients
from rljob_trainer.driver.buffer import saved
from rljob_trainer.driver.buffer.buffer import Ready, RolloutBuffer
from rljob_trainer.driver.buffer.examples import ExampleBuffer, Examples
from rljob_trainer.driver.buffer.measured import Measure, joined
from rljob_trainer.driver.buffer.saved import BufferSave
from rljob_trainer.driver.buffer.sources import BatchSource
from rljob_trainer.driver.gangs import Critic, Gangs
from rljob_trainer.driver.pool import RolloutPool
from rljob_trainer.driver.reporter import Reporter
from rljob_trainer.driver.server import ANSWER_SECONDS, Changes
from rljob_trainer.driver.uploads import Uploads
from rljob_trainer.reporting.samples import add_log_probs
from rljob_trainer.reporting.sinks import Sinks, connect_trackers
from rljob_trainer.reporting.spans import Collector, SpanLog
from rljob_trainer.reporting.tracker import RunStatus
from rljob_trainer.rewards.vllm_server import Pools
from rljob_trainer.wire.batch import Array, Batch
from rljob_trainer.wire.calls import LOG_PROBS, DriverCalls, EndpointFields, HeldOut, Next, PublishTargets
from rljob_trainer.wire.channel import announced, part_of
from rljob_trainer.wire.parity import probe_sequences


class Driver(DriverCalls):
    """The driver of one attempt. The methods that rank 0 calls are documented in wire/calls.py."""

    def __init__(
        self,
        control: Control,
        source: BatchSource | Examples,
        data: Dataset,
        measuring: Sequence[Measure],
        rollouts: RolloutPool,
        pools: Pools,
        reporter: Reporter,
        gangs: Gangs,
    ):
        """
        Args:
            control: with steps in place of epochs
            data: the training data, whose positions the data cursor counts
            measuring: models and teachers that measure every batch of rollouts
        """
        self._spec, self._source, self._data, self._measuring = control.spec, source, data, measuring
        self._rollouts, self._pools, self._gangs = rollouts, pools, gangs
        self._reporter = reporter
        self._control, self._trackers = control, connect_trackers(control, os.environ)
        self._command = control.command
        self._changes = Changes()
        pools.wake = rollouts.changed = self.wake
        gangs.open(control.spec.train.total_steps, self._reporter.show_phase)
        self._uploads = Uploads(control.spec.checkpoint, self._copied)
        self._uploaded = 0
        """Bytes uploaded when rank 0 asked last."""
        self._critic = Critic(gangs.critic, self._changes.tell) if gangs.critic else None
        self._step, self._cursor = 0, Cursor()
        self._handed: Ready | None = None
        self._announced: Batch | None = None
        """The batch that `part` returns rows of."""
        self._evaluation = Evaluation(control.spec, source, reporter, self._changes.tell)
        self._recipients = Recipients(rollouts, reporter)
        self._buffer_save = BufferSave(control.spec, self._changes.tell)
        self._ending = contextlib.AsyncExitStack()
        self._end: RunStatus = "failed"
        """How the attempt ends, for the trackers; failed until rank 0 calls `end`."""
        self._step_began = 0.0
        self._listed: list[RolloutEndpoint] = []
        self._colocated: list[RolloutEndpoint] = []

    async def apply(self, control: Control) -> None:
        """Apply a control message of the operator."""
        self._command = control.command
        self._listed = control.rollouts
        self._pools.follow(control.pools)
        self._reporter.show_phase()
        await self._rollouts.follow([*self._listed, *self._colocated])

    def wake(self) -> None:
        """The state of rollouts or pools changed: report it, and let waiting calls answer."""
        self._reporter.update(rollouts=self._rollouts.report(), unauthorized=self._pools.unauthorized)
        self._reporter.show_phase()
        self._changes.tell()

    def heartbeat(self, count: int) -> None:
        self._reporter.rank_moved(count)

    def awaiting(self, what: str) -> None:
        self._reporter.rank_awaits(what)

    def updating(self) -> None:
        self._reporter.enter("training")

    async def start(
        self,
        step: int,
        data: dict[str, Any] | None,
        checkpoints: Sequence[Checkpoint],
        backend: str,
        buffer: Path | None = None,
        engine: Path | None = None,
    ) -> None:
        if self._critic and engine:
            self._critic.restore(engine)
        self._step = step
        self._cursor = Cursor.restore(data, self._data, self._spec.data) if data else Cursor()
        sinks = Sinks(Path(self._spec.checkpoint.path), step, self._spec.train.total_steps, self._trackers)
        self._begin_step()
        steps = self._spec.train.total_steps
        self._reporter.begin(sinks, step, steps=steps, backend=backend, checkpoints=[*checkpoints])
        self._buffer = self._new_buffer(step)
        if buffer and isinstance(self._buffer, RolloutBuffer):
            self._buffer.restore(await asyncio.to_thread(saved.read, buffer, self._spec, step))
        await self._uploads.begin(Path(c.path) for c in checkpoints)
        self._ending.callback(self._close, sinks)
        self._spans = SpanLog(Path(self._spec.checkpoint.path), self._control, Collector.of(os.environ))
        self._ending.callback(self._end_spans)
        self._ending.push_async_callback(self._uploads.stop)
        self._ending.push_async_callback(self._buffer.stop)

    async def colocated(self, servers: list[EndpointFields]) -> None:
        self._colocated = [RolloutEndpoint.model_validate(s) for s in servers]
        await self._rollouts.follow([*self._listed, *self._colocated])

    async def steps(self) -> int:
        return self._spec.train.total_steps

    async def evaluate(self, step: int) -> None:
        assert step == self._step, f"the policy of step {step} at step {self._step}"
        assert isinstance(self._buffer, RolloutBuffer), "somebody generates"
        self._buffer.begin(step)

    async def held_out(self, step: int) -> HeldOut:
        if self._command == "drain" or not self._evaluation.is_due(step):
            return {"over": "done"}
        self._reporter.enter("evaluating")
        self._evaluation.begin()
        return await self._changes.answer(self._held_out)

    async def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._reporter.record_evaluation(step, metrics)
        self._reporter.enter("")

    async def next(self) -> Next:
        self._reporter.enter("")
        return await self._changes.answer(self._next)

    async def part(self, rows: Sequence[int]) -> dict[str, int]:
        assert self._announced is not None, "a batch comes before its parts"
        return part_of(self._announced, rows)

    async def log_probs(self, step: int, arrays: dict[str, Array]) -> None:
        assert self._handed is not None and step == self._handed.batch.step, f"step {step} was not handed out"
        root, columns = Path(self._spec.checkpoint.path), self._handed.batch.columns
        await asyncio.to_thread(add_log_probs, root, step, columns, arrays[LOG_PROBS])

    async def trained(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._handed is not None and step == self._handed.batch.step == self._step + 1, (
            f"step {step} was not handed out"
        )
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        rate = metrics["train/tokens"] / seconds
        measured = {**self._handed.batch.metrics, **metrics, "time/step": seconds, "perf/tokens_per_s": rate}
        self._step, self._cursor, self._handed = step, self._handed.cursor, None
        self._reporter.trained(step, measured)
        self._reporter.enter("")
        self._spans.append(step, self._reporter.timeline.cut())

    async def learn(self, step: int, arrays: dict[str, Array]) -> None:
        assert self._handed is not None and step == self._handed.batch.step, f"step {step} was not handed out"
        self._own_critic.learn(joined(Batch(step, self._handed.batch.columns, {}, {}), arrays))

    async def learnt(self) -> dict[str, float]:
        return await self._changes.answer(self._own_critic.learnt)

    async def save_gangs(self, step: int, directory: Path, alongside: bool) -> None:
        self._own_critic.save(step, directory, alongside)

    async def gangs_saved(self, step: int, wait: bool) -> dict[str, Any]:
        saved = partial(self._own_critic.saved, step)
        return await self._changes.answer(saved) if wait else saved()

    async def replicas(self) -> PublishTargets:
        if not await self._changes.answer(self._is_quiescent):
            return {}
        keeps = self._spec.keeps_requests and self._command != "drain"
        assert isinstance(self._buffer, RolloutBuffer), "somebody generates"
        await (self._buffer.leave() if keeps else self._buffer.stop())
        await self._rollouts.trained(keeps)
        self._reporter.enter("syncing")
        if self._command == "drain":
            self._recipients.skip()
            return {"replicas": []}
        return {"replicas": [r.dump() for r in self._recipients.begin()]}

    async def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        assert step == self._step, f"published step {step} at step {self._step}"
        if self._recipients.is_first:
            self._begin_step()  # waiting for servers to start is not part of the first step
        await self._recipients.finish(step, digest, failed, seconds)

    async def saving(self) -> dict[str, Any]:
        self._reporter.enter("saving")
        return self._cursor.state(self._data, self._spec.data)

    async def save_buffer(self, directory: Path) -> None:
        assert self._handed is None, "the buffer has what was not trained"
        if isinstance(self._buffer, RolloutBuffer):
            if self._command == "drain":
                await self._buffer.stop()  # with the tokens that are on the servers
            self._buffer_save.begin(directory, self._buffer.contents)

    async def buffer_saved(self, wait: bool) -> dict[str, Any]:
        return await self._changes.answer(self._buffer_save.files) if wait else self._buffer_save.files()

    async def saved(self, step: int, checkpoints: Sequence[Checkpoint], stall: float, background: float) -> None:
        self._reporter.record_quietly(step, {"time/save": stall, "time/save_background": background})
        self._reporter.update(checkpoints=[*checkpoints], saving=stall + background)
        for checkpoint in checkpoints:
            if checkpoint.step == step:
                self._uploads.checkpoint(Path(checkpoint.path))

    async def connected(self, transports: str) -> None:
        self._reporter.connected(transports)

    async def exported(self, directory: Path) -> None:
        self._uploads.export(directory)

    async def uploaded(self) -> bool:
        self._reporter.enter("finishing")
        if self._uploads.moved > self._uploaded:
            self._uploaded = self._uploads.moved
            self._reporter.moved()
        done = self._command == "drain" or self._uploads.done()
        if not done:
            await asyncio.sleep(ANSWER_SECONDS)
        return done

    async def end(self, export: str) -> None:
        self._reporter.enter("finishing")
        self._reporter.update(export=export)
        self._end = "drained" if self._command == "drain" else "succeeded"
        await self._gangs.finish(self._end)
        await self.close()

    async def close(self) -> None:
        """Stop generating and uploading, and write the last progress. May be called more than once."""
        if self._critic:
            self._critic.close()
        await self._ending.aclose()
        self._reporter.flush()

    def _next(self) -> Any:
        if self._command == "drain":
            return {"over": "drained"}
        ready = self._take()  # before a failure of the batch after it is raised below
        if ready:
            self._handed = ready
            self._reporter.enter("scoring")
            return self._announce(ready.batch)
        if (self._critic and not self._critic.is_idle) or self._buffer.is_measuring:
            return None
        if self._buffer.is_idle:
            return {"over": "succeeded"}
        newcomers = self._recipients.begin()
        return {"newcomers": [r.dump() for r in newcomers]} if newcomers else None

    @property
    def _own_critic(self) -> Critic:
        assert self._critic, "the critic has ranks of its own"
        return self._critic

    def _take(self) -> Ready | None:
        if self._critic and isinstance(self._buffer, RolloutBuffer):
            return self._critic.take(self._buffer)
        return self._buffer.take()

    def _announce(self, batch: Batch) -> Next:
        self._announced = batch
        return cast(Next, announced(batch, probe=probe_sequences(batch, self._spec.keeps_requests)))

    def _held_out(self) -> Next | None:
        batch = self._evaluation.held_out()
        return self._announce(batch) if batch is not None else None

    def _new_buffer(self, step: int) -> RolloutBuffer | ExampleBuffer:
        """The buffer of the batches after `step`."""
        spec, changed = self._spec, self._changes.tell
        if isinstance(self._source, Examples):
            return ExampleBuffer(spec, self._source, changed, step, self._cursor)
        return RolloutBuffer(
            spec, self._source, self._evaluation.by_rollouts, changed, step, self._cursor, self._measuring
        )

    def _is_quiescent(self) -> bool:
        """Nothing is generated under the previous policy any more, or it need not be waited for; see driver/__init__.py."""
        assert isinstance(self._buffer, RolloutBuffer), "somebody generates"
        return self._command == "drain" or not self._rollouts.is_enough or self._buffer.may_stop

    def _begin_step(self) -> None:
        self._step_began = time.monotonic()
        self._reporter.timeline.cut()

    def _close(self, sinks: Sinks) -> None:
        sinks.close(self._end)

    def _end_spans(self) -> None:
        """Of what came after the last step."""
        self._reporter.timeline.turn(names.ROLE_TRAINER, "")
        self._spans.append(self._step + 1, self._reporter.timeline.cut())
        self._spans.close()

    def _copied(self, step: int, seconds: float) -> None:
        self._reporter.record_quietly(step, {"time/upload": seconds})
