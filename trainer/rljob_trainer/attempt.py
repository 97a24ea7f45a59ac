"""What the loop can do, on every rank: each method is collective. Rank 0 alone talks to driver, volume and rollouts."""

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rljob_api import names
from rljob_api.protocol import Control, RolloutEndpoint
from rljob_api.sizing.memory import PhaseName
from rljob_trainer.buffer.batch_files import from_text
from rljob_trainer.checkpoint.checks import corruption
from rljob_trainer.checkpoint.manifest import read_manifest
from rljob_trainer.checkpoint.saving import Saver
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.huggingface import write_hugging_face
from rljob_trainer.memory import Plan
from rljob_trainer.parity import Probe, probe_samples
from rljob_trainer.trajectory import Trajectory
from rljob_trainer.weights.senders import Senders

MEASURED_STEPS = 2
"""After so many steps every phase has been measured."""

log = logging.getLogger(__name__)


class First:
    """What only rank 0 has."""

    def __init__(self, driver: DriverClient, store: Store, plan: Plan):
        self.driver, self.store, self.plan = driver, store, plan


class PolicyMismatchError(RuntimeError):
    """The policy that was restored is not the one that was saved."""


class Attempt:
    """One attempt, as one rank lives it. `first` is None on all ranks but the first."""

    def __init__(self, control: Control, ranks: Ranks, engine: Engine, senders: Senders, first: First | None):
        self._spec, self._ranks, self._engine, self._first = control.spec, ranks, engine, first
        self._senders = senders
        self._root = Path(control.spec.checkpoint.path)
        self._saver = Saver(engine, ranks, first.store if first else None)
        self._held: list[int | bool] | None = None
        """Step and reshardability of the newest checkpoint of this run's own, or of the model that it began with."""
        self._start = 0
        self._digest = ""
        self._expected: tuple[int, str] | None = None
        self._probe_samples: tuple[Trajectory, ...] = ()
        """Of the last batch, when that did not show that rollouts have the policy."""
        self._probed: dict[str, float] = {}
        """What the last probe found."""

    def begin(self) -> int:
        """Restore, and return the step that the attempt starts from. Raises ConfigurationError for a checkpoint whose content changed."""
        start = self._first.store.start if self._first else None
        step, directory = self._ranks.broadcast([start.manifest.step, str(start.directory)] if start else [0, ""])
        if directory:
            self._restore(Path(directory))
        if self._first:
            if start:
                self._digest = start.manifest.digest
                self._expected = step, self._digest
            data = dict(start.manifest.data) if start else None
            self._first.driver.start(step, data, self._first.store.checkpoints(), self._engine.backend)
        self._held = self._ranks.broadcast(self._own(step))
        self._start = step
        return step

    def _own(self, step: int) -> list[int | bool] | None:
        """What of `step` is in the run's own directory."""
        held = self._first.store.checkpoints() if self._first else []
        return [held[-1].step, held[-1].reshardable] if held else [0, True] if step == 0 else None

    def next(self) -> dict[str, Any]:
        """The driver's word."""
        return self._ranks.broadcast(self._first.driver.next() if self._first else None)

    def train(self, step: int, batch: str) -> None:
        """One step on the driver's batch."""
        began = time.monotonic()
        parsed = from_text(batch)
        assert parsed.step == step, f"batch of step {parsed.step} at step {step}"
        self._engine.memory.enter("score")
        if self._senders.colocated:
            self._senders.rest()
        metrics = self._engine.train_step(parsed)
        self._engine.memory.enter("generate")
        self._probe_samples = probe_samples(parsed)
        peaks = self._peaks()
        if self._first:
            self._first.store.check()
            metrics |= self._probed | {f"memory/peak_{phase}_bytes": size for phase, size in peaks.items()}
            self._first.driver.trained(step, metrics | {"time/train": time.monotonic() - began})
            if step == self._start + MEASURED_STEPS:
                log.info("%s", self._first.plan.table(peaks))

    def _peaks(self) -> dict[PhaseName, float]:
        """The most that was in use on any rank's device in each phase so far."""
        found = self._ranks.gather(self._engine.memory.peaks)
        return {phase: max(peaks[phase] for peaks in found) for phase in self._engine.memory.peaks}

    def sync(self, step: int, replicas: list[dict[str, Any]]) -> None:
        """Send the policy of `step` to these rollouts.

        Raises PolicyMismatchError when a restored policy is not the saved one, MismatchError when a rollout's log-probabilities are another's.
        """
        self._engine.memory.enter("sync")
        began = time.monotonic()
        probe = self._probe() if replicas else None
        self._rest()
        targets = [RolloutEndpoint.model_validate(r) for r in replicas]
        published = self._senders.publish(step, self._exported(), targets, probe)
        if not (self._first and published):
            return
        self._digest = published.version.digest
        if published.difference:
            mean, largest = published.difference
            self._probed = {"train_rollout/probe_diff_mean": mean, "train_rollout/probe_diff_max": largest}
        if self._expected and self._expected != (step, self._digest) and self._expected[0] == step:
            raise PolicyMismatchError(
                f"step {step} was restored as {self._digest}, its manifest says {self._expected[1]}"
            )
        self._first.driver.published(step, self._digest, published.failed, time.monotonic() - began)

    def _probe(self) -> Probe | None:
        """What those who get the policy are to agree with."""
        if not self._probe_samples:
            return None
        found = self._engine.log_probs(self._probe_samples)
        sequences = tuple(tuple(s.tokens.tolist()) for s in self._probe_samples)
        return Probe(sequences, tuple(tuple(values.tolist()) for values in found), self._spec.model.dtype)

    def _exported(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy. Servers wake for good only when all of it was taken: what parameters took on these GPUs is free again then."""
        yield from self._engine.export()
        self._rest()
        self._engine.memory.enter("generate")

    def _rest(self) -> None:
        """Colocated: no rank keeps memory that it does not need."""
        if self._senders.colocated:
            self._engine.release_memory()
            self._ranks.barrier()

    def save_due(self, step: int) -> bool:
        """A periodic checkpoint of `step`, which this attempt trained, has not been made."""
        every, begun = self._spec.checkpoint.every_steps, self._held is not None and self._held[0] == step
        return (
            step > self._start and not begun and (step == self._spec.train.steps or (every > 0 and step % every == 0))
        )

    def save(self, step: int, final: bool) -> None:
        """Make a checkpoint of `step`, unless there is one. `final`: complete when this returns, and for any layout; else as the spec says."""
        # first: the driver counts no beats between steps, and a save under way may take long
        data = self._first.driver.saving() if self._first else {}
        self.settle(wait=True)
        beside = self._spec.checkpoint.asynchronous and not final and step < self._spec.train.steps
        if self._held == [step, True] or (self._held == [step, False] and beside):
            return
        self._engine.memory.enter("save")
        self._saver.begin(step, self._digest, data, reshardable=not beside)
        self._held = [step, not beside]
        self._engine.memory.enter("generate")
        if not beside:
            self.settle(wait=True)

    def settle(self, wait: bool = False) -> None:
        """Complete the checkpoint that is being written: if it is on the disk, or once it is. Raises SaveFailed when it cannot be."""
        saved = self._saver.settle(wait)
        if saved and self._first:
            checkpoints = self._first.store.checkpoints()
            self._first.driver.saved(saved.step, checkpoints, saved.stall_seconds, saved.background_seconds)

    def export(self, step: int) -> str:
        """The final policy as a Hugging Face directory beside its checkpoint; its path, empty when the spec wants none."""
        if not self._spec.checkpoint.export_hugging_face:
            return ""
        target = names.huggingface_dir(self._root, step)
        scratch = target.with_name(target.name + ".tmp")
        if self._first:
            shutil.rmtree(scratch, ignore_errors=True)
        write_hugging_face(self._engine, Path(self._spec.model.path), scratch)
        if self._first:
            self._first.store.check()
            shutil.rmtree(target, ignore_errors=True)
            scratch.rename(target)
        return str(target)

    def end(self, export: str = "") -> None:
        """Say goodbye to the driver."""
        if self._first:
            self._first.driver.end(export)
        self._ranks.barrier()

    def _restore(self, directory: Path) -> None:
        """Every rank checks its share of the files before any is loaded."""
        manifest = read_manifest(directory)
        assert manifest is not None, f"{directory} was chosen by rank 0"
        if found := corruption(manifest, directory, self._ranks, self._engine.heartbeat):
            fix = "restore the file, or go back to an older checkpoint with resume --from-step"
            raise ConfigurationError("spec.checkpoint.path", str(directory), found, fix)
        self._engine.load(directory / manifest.engine)
