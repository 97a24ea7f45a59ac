"""One attempt as a rank runs it: everything that the loop does besides training. Every method is collective; rank 0 alone talks to the driver,
the volume and the rollouts.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.sizing.memory import PhaseName
from rljob_trainer.algorithm.objective import Targets
from rljob_trainer.algorithm.value import CRITIC_COLUMNS
from rljob_trainer.checkpoint.checks import corruption
from rljob_trainer.checkpoint.manifest import BUFFERS, ENGINE, read_manifest
from rljob_trainer.checkpoint.saving import Saver
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.memory import MemoryPlan
from rljob_trainer.megatron.step import Step
from rljob_trainer.rank import nccl
from rljob_trainer.rank.driver_client import DriverClient
from rljob_trainer.rank.publication import Exports
from rljob_trainer.rank.scatter import Scatter
from rljob_trainer.rank.tasks import RankTask, task_of
from rljob_trainer.rank.weights.senders import Senders
from rljob_trainer.reporting.samples import MOST_TOKENS, kept_rows
from rljob_trainer.wire.calls import TaskOutcome
from rljob_trainer.wire.collective import Ranks

MEASURED_STEPS = 2
"""After this many steps the peak memory of every phase is known."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankZero:
    """What only rank 0 has."""

    driver: DriverClient
    store: Store
    plan: MemoryPlan

    def save_buffer(self, directory: Path) -> None:
        """Write the rollout buffer into a new directory; none when it is empty."""
        self.driver.save_buffer(directory)
        while not self.driver.buffer_saved(wait=True):
            continue


class RankAttempt:
    """One attempt. `rank_zero` is None on all other ranks."""

    def __init__(
        self, control: Control, ranks: Ranks, engine: Engine, senders: Senders | None, rank_zero: RankZero | None
    ):
        """`senders`: to the rollouts; None for tasks without rollouts."""
        self._spec, self._ranks, self._rank_zero, self.engine = control.spec, ranks, rank_zero, engine
        driver = rank_zero.driver if rank_zero else None
        self.task: RankTask = task_of(control.spec, ranks, driver, engine, senders, self._complete_save)
        self._scatter = Scatter(ranks, driver, engine, engine.parts)
        self._critic_apart = names.ROLE_CRITIC in control.spec.gangs
        store = rank_zero.store if rank_zero else None
        self._saver = Saver(engine, ranks, store, driver, self._critic_apart)
        self._exports = Exports(control.spec, engine, driver, store)
        self._newest: int | None = None
        """Step of this run's newest checkpoint. None: the attempt starts from one outside of this run's own directory, and has saved nothing yet."""
        self._start = 0

    def begin(self) -> int:
        """Restore the newest checkpoint, if there is one. Returns the step that the attempt starts from.

        Raises ConfigurationError when a file of the checkpoint is not what was saved.
        """
        start = self._rank_zero.store.start if self._rank_zero else None
        step, directory = self._ranks.broadcast([start.manifest.step, str(start.directory)] if start else [0, ""])
        if directory:
            self._restore(Path(directory))
        if self._spec.saves_in_background(after=step):
            self.engine.prepare_save()
        if self._rank_zero:
            self._start_driver(self._rank_zero, step)
        self._newest = self._ranks.broadcast(self._newest_checkpoint(step))
        self._start = step
        self.evaluate(step)
        return step

    def start_update(self, step: Step, targets: Targets) -> None:
        """Report that the update begins. A critic on a gang of its own learns from the step while the policy does; `trained` waits for it."""
        if self._rank_zero:
            self._rank_zero.driver.updating()
        if self._critic_apart:
            chosen = {name: targets.columns[name] for name in CRITIC_COLUMNS if name in targets.columns}
            values = {name: {row: v.numpy() for row, v in rows.items()} for name, rows in chosen.items()}
            columns = self._scatter.collect(step.batch.columns, values)
            if self._rank_zero and columns:
                self._rank_zero.driver.learn(step.batch.step, columns)

    def trained(self, step: Step, metrics: Mapping[str, float], seconds: float) -> int:
        """Report the step that was trained, with its metrics, and the log-probabilities of the samples that are kept. Returns its number."""
        self.engine.memory.enter("generate")
        peaks, critic, batch = self._peaks(), self._critic_metrics(), step.batch
        log_probs = None if self._spec.supervised else step.logged(kept_rows(batch.columns), MOST_TOKENS)
        if self._rank_zero:
            self._rank_zero.store.check()
            if log_probs is not None:
                self._rank_zero.driver.log_probs(batch.step, log_probs.numpy())
            memory = {f"memory/peak_{phase}_bytes": size for phase, size in peaks.items()}
            measured = {**metrics, **critic, **self.task.metrics, **memory, "time/train": seconds}
            self._rank_zero.driver.trained(batch.step, measured)
            if batch.step == self._start + MEASURED_STEPS:
                log.info("%s", self._rank_zero.plan.table(peaks))
        if batch.step == self._start + 1:
            self._report_transports()
        return batch.step

    def publish(self, step: int) -> None:
        """Send the policy of `step` to the rollouts, where the task has some."""
        self.task.publish(step)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step`, or begin to, when that is due."""
        self.task.evaluate(step)

    def save(self, step: int) -> None:
        """Save a periodic checkpoint of `step`, if one is due. With checkpoint.asynchronous it is written while the next steps train."""
        if self._save_due(step):
            self._save(step, final=False)

    def export(self, step: int) -> None:
        """Write the policy of `step` as a Hugging Face directory, if that is due. Training waits for it."""
        if self._exports.due(step):
            if self._rank_zero:
                self._rank_zero.driver.saving()
            self._exports.periodic(step)

    def finish(self, step: int, outcome: TaskOutcome) -> None:
        """Save the last checkpoint, export the policy if the job has succeeded, and end the driver.

        A drained job keeps what it has generated by now, also where the step was saved before. With evaluation.only nothing is saved or exported.
        """
        export = ""
        if not self._spec.evaluation.only:
            saved_before = self._newest == step
            self._save(step, final=True)
            if outcome == "drained" and saved_before and step and self._rank_zero:
                self._rank_zero.store.renew_buffer(step, self._rank_zero.save_buffer)
            export = self._exports.final(step) if outcome == "succeeded" else ""
            self._until_uploaded()
        if self._rank_zero:
            self._rank_zero.driver.end(export)
        self._ranks.barrier()

    def _start_driver(self, rank_zero: RankZero, step: int) -> None:
        """Tell the driver where the attempt starts, and with which data cursor and rollout buffer."""
        start, checkpoints = rank_zero.store.start, rank_zero.store.checkpoints()
        if start is None:
            rank_zero.driver.start(step, None, checkpoints, self.engine.backend)
            return
        manifest = start.manifest
        self.task.restored(step, manifest.digest)
        buffer, engine = start.directory / manifest.buffer, start.directory / ENGINE
        rank_zero.driver.start(step, dict(manifest.data), checkpoints, self.engine.backend, buffer, engine)

    def _report_transports(self) -> None:
        """Report how NCCL connects the ranks. It says so when ranks first talk to each other, so after the first step."""
        sentence = nccl.sentence(self._ranks.gather(nccl.transports()))
        if self._rank_zero and sentence:
            log.info("%s", sentence)
            self._rank_zero.driver.connected(sentence)

    def _until_uploaded(self) -> None:
        """Wait until all checkpoints and exports are in spec.checkpoint.upload, if it is set."""
        while self._spec.checkpoint.upload:
            if self._ranks.broadcast(self._rank_zero.driver.uploaded() if self._rank_zero else None):
                return

    def _critic_metrics(self) -> dict[str, float]:
        """Wait for the critic on a gang of its own; the metrics of its update. Empty without one."""
        while self._critic_apart:
            learnt = self._ranks.broadcast(self._rank_zero.driver.learnt() if self._rank_zero else None)
            if learnt:
                return learnt
        return {}

    def _restore(self, directory: Path) -> None:
        """Load a checkpoint, after the ranks have compared every file with the manifest, each a share of them."""
        manifest = read_manifest(directory)
        assert manifest is not None, f"{directory} was chosen by rank 0"
        damage = corruption(manifest, directory, self._ranks, self.engine.heartbeat)
        if damage:
            fix = "restore the file, or go back to an older checkpoint with resume --from-step"
            raise ConfigurationError("spec.checkpoint.path", str(directory), damage, fix)
        self.engine.load(directory / ENGINE)

    def _newest_checkpoint(self, step: int) -> int | None:
        """On rank 0. A job that starts from the model needs no checkpoint of step 0."""
        held = self._rank_zero.store.checkpoints() if self._rank_zero else []
        if held:
            return held[-1].step
        return 0 if step == 0 else None

    def _peaks(self) -> dict[PhaseName, float]:
        """Bytes by phase: the largest peak of any rank's device so far."""
        of_ranks = self._ranks.gather(self.engine.memory.peaks)
        return {phase: max(peaks[phase] for peaks in of_ranks) for phase in self.engine.memory.peaks}

    def _save_due(self, step: int) -> bool:
        """Whether this attempt trained `step`, has not saved it yet, and should: it is the last one, or a multiple of everySteps."""
        every = self._spec.checkpoint.every_steps
        is_periodic = every > 0 and step % every == 0
        return step > self._start and self._newest != step and (is_periodic or step == self._spec.train.total_steps)

    def _save(self, step: int, final: bool) -> None:
        """Save `step`, unless there is such a checkpoint already.

        `final`: complete when this returns. Otherwise as spec.checkpoint.asynchronous says.
        """
        # before the wait below, which may be long: the driver counts rank 0's heartbeats only in a phase such as saving
        data = self._rank_zero.driver.saving() if self._rank_zero else {}
        self._complete_save(wait=True)
        if self._newest == step:
            return
        alongside = self._spec.checkpoint.asynchronous and not final and step < self._spec.train.total_steps
        digest = self.task.digest(step)
        self.engine.memory.enter("save")
        self._saver.begin(step, digest, data, alongside, further=self._save_buffer)
        self._newest = step
        self.engine.memory.enter("generate")
        if not alongside:
            self._complete_save(wait=True)

    def _save_buffer(self, directory: Path) -> None:
        """Begin to add the rollout buffer, which holds what was generated and not trained yet, to the checkpoint in a directory."""
        if self._rank_zero:
            self._rank_zero.driver.save_buffer(directory / BUFFERS[0])

    def _complete_save(self, wait: bool = False) -> None:
        """Commit the checkpoint that is being written, if all of it is on the disk; `wait`: once it is. Raises SaveFailed."""
        saved = self._saver.complete(wait)
        if saved and self._rank_zero:
            checkpoints = self._rank_zero.store.checkpoints()
            self._rank_zero.driver.saved(saved.step, checkpoints, saved.stall_seconds, saved.background_seconds)
