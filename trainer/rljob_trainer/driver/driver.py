"""The driver's state, and what it answers to rank 0."""

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

from rljob_api.protocol import Checkpoint, Control, RolloutEndpoint
from rljob_trainer.buffer import batch_files
from rljob_trainer.buffer.supply import Supply
from rljob_trainer.buffer.work import Next, Source
from rljob_trainer.data.order import Cursor
from rljob_trainer.data.prompts import PromptSet
from rljob_trainer.driver.progress import ProgressFile
from rljob_trainer.driver.rollouts import Rollouts
from rljob_trainer.reporting.sinks import Sinks
from rljob_trainer.reporting.weights_and_biases import connect

ANSWER_SECONDS = 1.0
"""`next` answers after this time at the latest, so that the other ranks' broadcast stays alive."""
WAIT: dict[str, Any] = {"do": "wait"}
MOVE_ON: dict[str, Any] = {"do": "publish"}
"""To everyone: the trained policy takes the place of the one before."""


class Driver:
    """One attempt. The methods without underscore are rank 0's calls (driver/client.py documents them)."""

    def __init__(
        self, control: Control, source: Source, prompts: PromptSet, rollouts: Rollouts, progress: ProgressFile
    ):
        self._spec, self._source, self._prompts, self._rollouts, self._progress = (
            control.spec,
            source,
            prompts,
            rollouts,
            progress,
        )
        self._run = connect(control, os.environ)
        self._command = control.command
        self._wake = asyncio.Event()
        self._step, self._cursor = 0, Cursor()
        self._handed: Next | None = None
        self._ending = contextlib.AsyncExitStack()
        self._step_began = 0.0
        self._rank_phase = "loading"
        self._work_phase = "training"
        self._targets: list[RolloutEndpoint] = []
        self._listed: list[RolloutEndpoint] = []
        self._colocated: list[RolloutEndpoint] = []

    async def obey(self, control: Control) -> None:
        """The operator said something new."""
        self._command = control.command
        self._listed = control.rollouts
        await self._rollouts.follow([*self._listed, *self._colocated])

    def wake(self) -> None:
        """Something changed that `next` may be waiting for."""
        self._progress.update(rollouts=self._rollouts.report())
        self._show()
        self._wake.set()

    def beat(self, count: int) -> None:
        """Rank 0 moved. Between steps it only serves newcomers: if they fail again and again, that is no progress."""
        if self._rank_phase:
            self._progress.beat(count)

    def phase(self, name: str) -> None:
        """What the work does. Shown while rank 0 has nothing of its own to do."""
        self._work_phase = name
        self._show()

    async def start(self, step: int, data: dict[str, Any] | None, checkpoints: list[dict], backend: str) -> None:
        self._step = step
        self._cursor = Cursor.restore(data, self._prompts) if data else Cursor()
        self._sinks = Sinks(Path(self._spec.checkpoint.path), step, self._spec.train.steps, self._run)
        self._step_began = time.monotonic()
        self._progress.update(
            step=step,
            started_from=step,
            policy_step=step,
            backend=backend,
            metrics=self._sinks.of(step),
            history=self._sinks.history(),
            evaluation=self._sinks.evaluation(),
            checkpoints=[Checkpoint.model_validate(c) for c in checkpoints],
        )
        self._supply = Supply(self._spec, self._source, self._evaluate, self._wake.set, step, self._cursor)
        self._ending.callback(self._sinks.close)
        self._ending.push_async_callback(self._supply.stop)

    async def colocated(self, servers: list[dict]) -> None:
        self._colocated = [RolloutEndpoint.model_validate(s) for s in servers]
        await self._rollouts.follow([*self._listed, *self._colocated])

    async def next(self) -> dict[str, Any]:
        self._enter("")
        answer: dict[str, Any] | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while not (answer := self._answer()):
                    self._wake.clear()
                    await self._wake.wait()
        return await self._move_on() if answer == MOVE_ON else answer or WAIT

    async def trained(self, step: int, metrics: dict[str, float]) -> None:
        assert self._handed is not None and step == self._handed.batch.step == self._step + 1, (
            f"step {step} was not handed out"
        )
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        rate = metrics["train/tokens"] / seconds
        self._record(
            step, dict(self._handed.batch.metrics) | metrics | {"time/step": seconds, "perf/tokens_per_s": rate}
        )
        self._step, self._cursor, self._handed = step, self._handed.cursor, None
        self._progress.beat()
        self._progress.update(step=step, history=self._sinks.history())

    async def published(self, step: int, digest: str, failed: dict[str, str], seconds: float) -> None:
        assert step == self._step, f"published step {step} at step {self._step}"
        first = not self._progress.progress.digest
        moved = first or self._progress.progress.policy_step != step
        if first:
            self._step_began = time.monotonic()  # waiting for servers to start is not part of the first step
        self._progress.update(policy_step=step, digest=digest)
        await self._rollouts.published(step, self._targets, failed)
        sync = {"time/sync": seconds} if moved else {}  # a newcomer's would take its place
        self._record(step, sync | {"rollout/replicas": float(self._rollouts.count)})

    async def saving(self) -> dict[str, Any]:
        self._enter("saving")
        return self._cursor.state(self._prompts)

    async def saved(self, step: int, checkpoints: list[dict], stall: float, background: float) -> None:
        self._sinks.record(step, {"time/save": stall, "time/save_background": background})
        self._progress.update(checkpoints=[Checkpoint.model_validate(c) for c in checkpoints])

    async def end(self, export: str) -> None:
        self._enter("finishing")
        self._progress.update(export=export)
        await self.close()

    async def close(self) -> None:
        """Stop working, write what is known. Once is enough."""
        await self._ending.aclose()
        self._progress.flush()

    def _answer(self) -> dict[str, Any] | None:
        """What rank 0 shall do now; None: nothing yet."""
        drain = self._command == "drain"
        if self._progress.progress.policy_step != self._step:
            return MOVE_ON if drain or not self._rollouts.is_enough or self._supply.done else None
        if drain:
            return {"do": "drain"}
        if found := self._supply.take():  # before what the next one may have failed at
            self._handed = found
            self._enter("training")
            return {"do": "train", "batch": batch_files.to_text(found.batch)}
        if self._supply.done:
            return {"do": "finish"}
        return self._publication(self._rollouts.to_publish())

    async def _move_on(self) -> dict[str, Any]:
        """Nobody generates any more: who does not have the policy of this step, needs it. In a drain nobody gets it."""
        await self._supply.stop()
        await self._rollouts.trained()
        self._supply.begin(self._step)
        self._enter("syncing")
        targets = self._rollouts.to_publish() if self._command != "drain" else []
        return self._publication(targets) or MOVE_ON | {"replicas": []}

    def _publication(self, targets: list[RolloutEndpoint]) -> dict[str, Any] | None:
        self._targets = targets
        return {"do": "publish", "replicas": [r.dump() for r in targets]} if targets else None

    async def _evaluate(self, step: int) -> None:
        """The policy of `step`, when that is due."""
        if self._evaluation_due(step) and (metrics := await self._source.evaluate()):
            self._record(step, metrics)
            self._progress.update(evaluation=self._sinks.evaluation())

    def _evaluation_due(self, step: int) -> bool:
        every = self._spec.evaluation.every_steps
        due = every > 0 and (step % every == 0 or step >= self._spec.train.steps)
        return due and "evaluation/reward" not in self._sinks.of(step)

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        self._sinks.record(step, metrics)
        self._progress.update(metrics=self._sinks.of(step))

    def _enter(self, rank_phase: str) -> None:
        self._rank_phase = rank_phase
        self._show()

    def _show(self) -> None:
        """The phase, for the report."""
        starving = self._work_phase in ("evaluating", "generating") and not self._rollouts.is_enough
        self._progress.update(phase=self._rank_phase or ("waiting" if starving else self._work_phase))
