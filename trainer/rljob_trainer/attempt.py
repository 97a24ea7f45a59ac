"""What the loop can do besides training, on every rank: each method is collective. Rank 0 alone talks to driver, volume and rollouts."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.sizing.memory import PhaseName
from rljob_trainer import nccl
from rljob_trainer.batch import Batch
from rljob_trainer.checkpoint.checks import corruption
from rljob_trainer.checkpoint.manifest import buffer_directory, read_manifest
from rljob_trainer.checkpoint.saving import Saver
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.exports import Exports
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.memory import Plan
from rljob_trainer.objectives.objective import Targets
from rljob_trainer.objectives.value import critic_columns
from rljob_trainer.tasks import Outcome, Source
from rljob_trainer.tasks.choice import source_of
from rljob_trainer.weights.publisher import Senders

MEASURED_STEPS = 2
"""After so many steps every phase has been measured."""

log = logging.getLogger(__name__)


class RankZero:
    """What only rank 0 has."""

    def __init__(self, driver: DriverClient, store: Store, plan: Plan):
        self.driver, self.store, self.plan = driver, store, plan


class Attempt:
    """One attempt, as one rank lives it. `rank_zero` is None on all other ranks."""

    def __init__(
        self, control: Control, ranks: Ranks, engine: Engine, senders: Senders | None, rank_zero: RankZero | None
    ):
        """`senders`: to the rollouts, where the task has some."""
        self._spec, self._ranks, self._rank_zero, self.engine = control.spec, ranks, rank_zero, engine
        driver = rank_zero.driver if rank_zero else None
        self.source: Source = source_of(control.spec, ranks, driver, engine, senders, self._complete_save)
        self._root = Path(control.spec.checkpoint.path)
        self._critic_apart = names.ROLE_CRITIC in control.spec.gangs
        store = rank_zero.store if rank_zero else None
        self._saver = Saver(engine, ranks, store, driver, self._critic_apart)
        self._exports = Exports(control.spec, engine, driver, store)
        self._newest: list[int | bool] | None = None
        """Step and reshardability of the newest checkpoint of this run's own, or of the model that it began with."""
        self._start = 0

    def begin(self) -> int:
        """Restore, and return the step that the attempt starts from. Raises ConfigurationError for a checkpoint whose content changed."""
        start = self._rank_zero.store.start if self._rank_zero else None
        step, directory = self._ranks.broadcast([start.manifest.step, str(start.directory)] if start else [0, ""])
        if directory:
            self._restore(Path(directory))
        if self._rank_zero:
            if start:
                self.source.restored(step, start.manifest.digest)
            data = dict(start.manifest.data) if start else None
            directory = start.directory if start else None
            buffer = directory / start.manifest.buffer if start and directory else None
            engine = directory / start.manifest.engine if start and directory else None
            checkpoints = self._rank_zero.store.checkpoints()
            self._rank_zero.driver.start(step, data, checkpoints, self.engine.backend, buffer, engine)
        self._newest = self._ranks.broadcast(self._newest_checkpoint(step))
        self._start = step
        self.evaluate(step)
        return step

    def teach(self, batch: Batch, targets: Targets) -> None:
        """A critic on ranks of its own begins to learn from the batch, while the policy does."""
        if self._rank_zero and self._critic_apart:
            self._rank_zero.driver.learn(batch.step, critic_columns(targets))

    def trained(self, batch: Batch, metrics: Mapping[str, float], seconds: float) -> int:
        """The step that the batch has trained, in so many seconds."""
        self.engine.memory.enter("generate")
        peaks, critic = self._peaks(), self._learnt()
        if self._rank_zero:
            self._rank_zero.store.check()
            memory = {f"memory/peak_{phase}_bytes": size for phase, size in peaks.items()}
            measured = {**metrics, **critic, **self.source.metrics, **memory, "time/train": seconds}
            self._rank_zero.driver.trained(batch.step, measured)
            if batch.step == self._start + MEASURED_STEPS:
                log.info("%s", self._rank_zero.plan.table(peaks))
        if batch.step == self._start + 1:
            self._say_transports()
        return batch.step

    def publish(self, step: int) -> None:
        """Whoever generates gets the policy of `step`."""
        self.source.publish(step)

    def evaluate(self, step: int) -> None:
        """Evaluate the policy of `step`, or begin to, when that is due."""
        self.source.evaluate(step)

    def save(self, step: int) -> None:
        """Make a periodic checkpoint of `step`, when that is due: before the next steps, or while they train."""
        if self._save_due(step):
            self._save(step, final=False)

    def export(self, step: int) -> None:
        """Write the policy of `step` as a Hugging Face directory, when that is due; training waits."""
        if self._exports.due(step):
            if self._rank_zero:
                self._rank_zero.driver.saving()
            self._exports.periodic(step)

    def finish(self, step: int, outcome: Outcome) -> None:
        """Make the last checkpoint, of any layout; export the policy when the job has succeeded; say goodbye to the driver. With evaluation.only
        there is neither."""
        export = ""
        if not self._spec.evaluation.only:
            self._save(step, final=True)
            export = self._exports.final(step) if outcome == "succeeded" else ""
            self._until_uploaded()
        if self._rank_zero:
            self._rank_zero.driver.end(export)
        self._ranks.barrier()

    def _say_transports(self) -> None:
        """Once every rank has talked to those that it trains with."""
        found = nccl.sentence(self._ranks.gather(nccl.transports()))
        if self._rank_zero and found:
            log.info("%s", found)
            self._rank_zero.driver.connected(found)

    def _until_uploaded(self) -> None:
        """All that the run has completed is in spec.checkpoint.upload, if there is one."""
        while self._spec.checkpoint.upload:
            if self._ranks.broadcast(self._rank_zero.driver.uploaded() if self._rank_zero else None):
                return

    def _learnt(self) -> dict[str, float]:
        """Metrics of the critic that learnt on ranks of its own."""
        while self._critic_apart:
            if found := self._ranks.broadcast(self._rank_zero.driver.learnt() if self._rank_zero else None):
                return found
        return {}

    def _restore(self, directory: Path) -> None:
        """Every rank checks its share of the files before any is loaded."""
        manifest = read_manifest(directory)
        assert manifest is not None, f"{directory} was chosen by rank 0"
        if found := corruption(manifest, directory, self._ranks, self.engine.heartbeat):
            fix = "restore the file, or go back to an older checkpoint with resume --from-step"
            raise ConfigurationError("spec.checkpoint.path", str(directory), found, fix)
        self.engine.load(directory / manifest.engine)

    def _newest_checkpoint(self, step: int) -> list[int | bool] | None:
        """What of `step` is in the run's own directory."""
        held = self._rank_zero.store.checkpoints() if self._rank_zero else []
        return [held[-1].step, held[-1].reshardable] if held else [0, True] if step == 0 else None

    def _peaks(self) -> dict[PhaseName, float]:
        """The most that was in use on any rank's device in each phase so far."""
        found = self._ranks.gather(self.engine.memory.peaks)
        return {phase: max(peaks[phase] for peaks in found) for phase in self.engine.memory.peaks}

    def _save_due(self, step: int) -> bool:
        """A periodic checkpoint of `step`, which this attempt trained, has not been made."""
        every, begun = self._spec.checkpoint.every_steps, self._newest is not None and self._newest[0] == step
        return (
            step > self._start
            and not begun
            and (step == self._spec.train.total_steps or (every > 0 and step % every == 0))
        )

    def _save(self, step: int, final: bool) -> None:
        """Make a checkpoint of `step`, unless there is one. `final`: complete when this returns, and for any layout; else as the spec says."""
        # first: the driver counts no heartbeats between steps, and a save under way may take long
        data = self._rank_zero.driver.saving() if self._rank_zero else {}
        self._complete_save(wait=True)
        alongside = self._spec.checkpoint.asynchronous and not final and step < self._spec.train.total_steps
        if self._newest == [step, True] or (self._newest == [step, False] and alongside):
            return
        digest = self.source.digest(step)
        self.engine.memory.enter("save")
        self._saver.begin(step, digest, data, reshardable=not alongside, further=self._save_buffer(not alongside))
        self._newest = [step, not alongside]
        self.engine.memory.enter("generate")
        if not alongside:
            self._complete_save(wait=True)

    def _save_buffer(self, reshardable: bool) -> Callable[[Path], None]:
        """Makes what was generated and not trained part of a checkpoint, whose directory it is given."""

        def save(directory: Path) -> None:
            if self._rank_zero:
                self._rank_zero.driver.save_buffer(directory / buffer_directory(reshardable))

        return save

    def _complete_save(self, wait: bool = False) -> None:
        """Complete the checkpoint that is being written: if it is on the disk, or once it is. Raises SaveFailed when it cannot be."""
        saved = self._saver.complete(wait)
        if saved and self._rank_zero:
            checkpoints = self._rank_zero.store.checkpoints()
            self._rank_zero.driver.saved(saved.step, checkpoints, saved.stall_seconds, saved.background_seconds)
