"""What the loop can do, on every rank: each method is collective. Rank 0 alone talks to driver, volume and rollouts."""

import shutil
import time
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import Control, RolloutEndpoint
from rljob_trainer.batch import StepBatch
from rljob_trainer.checkpoint.manifest import fingerprints, read_manifest
from rljob_trainer.checkpoint.store import Store
from rljob_trainer.collective import Ranks
from rljob_trainer.driver.client import DriverClient
from rljob_trainer.megatron.engine import Engine
from rljob_trainer.megatron.huggingface import write_hugging_face
from rljob_trainer.weights.publisher import Publisher

MEGATRON = "megatron"
"""Directory of the engine's files inside a checkpoint."""


class First:
    """What only rank 0 has."""

    def __init__(self, driver: DriverClient, store: Store, publisher: Publisher):
        self.driver, self.store, self.publisher = driver, store, publisher


class PolicyMismatchError(RuntimeError):
    """The policy that was restored is not the one that was saved."""


class Attempt:
    """One attempt, as one rank lives it. `first` is None on all ranks but the first."""

    def __init__(self, control: Control, ranks: Ranks, engine: Engine, first: First | None):
        self._spec, self._ranks, self._engine, self._first = control.spec, ranks, engine, first
        self._root = Path(control.spec.checkpoint.path)
        self._saved = 0
        self._digest = ""
        self._expected: tuple[int, str] | None = None

    def begin(self) -> int:
        """Restore, and return the step that the attempt starts from. Raises RuntimeError for a checkpoint whose content changed."""
        start = self._first.store.start if self._first else None
        step = self._ranks.broadcast(start.step if start else 0)
        if step:
            self._restore(step)
        if self._first:
            self._expected = (start.step, start.digest) if start else None
            data = dict(start.data) if start else None
            self._first.driver.start(step, data, self._first.store.checkpoints(), self._engine.backend)
        self._saved = step
        return step

    def next(self) -> dict[str, Any]:
        """The driver's word."""
        return self._ranks.broadcast(self._first.driver.next() if self._first else None)

    def train(self, step: int, batch: str) -> list[dict[str, Any]]:
        """One step on the driver's batch; the rollouts that want the new policy."""
        began = time.monotonic()
        parsed = StepBatch.from_json(batch)
        assert parsed.step == step, f"batch of step {parsed.step} at step {step}"
        metrics = self._engine.train_step(parsed)
        replicas = None
        if self._first:
            self._first.store.check()
            replicas = self._first.driver.trained(step, metrics | {"time/train": time.monotonic() - began})
        return self._ranks.broadcast([r.dump() for r in replicas] if replicas is not None else None)

    def sync(self, step: int, replicas: list[dict[str, Any]]) -> None:
        """Send the policy of `step` to these rollouts. Raises PolicyMismatchError when a restored policy is not the saved one."""
        if not self._first:
            for _ in self._engine.export():
                pass  # exporting is collective
            return
        began = time.monotonic()
        targets = [RolloutEndpoint.model_validate(r) for r in replicas]
        published = self._first.publisher.publish(step, iter(self._engine.export()), targets, self._first.driver.beat)
        self._digest = published.version.digest
        if self._expected and self._expected != (step, self._digest) and self._expected[0] == step:
            raise PolicyMismatchError(
                f"step {step} was restored as {self._digest}, its manifest says {self._expected[1]}"
            )
        self._first.driver.published(step, self._digest, published.failed, time.monotonic() - began)

    def save_due(self, step: int) -> bool:
        every = self._spec.checkpoint.every_steps
        return step == self._spec.train.steps or (every > 0 and step % every == 0)

    def save(self, step: int) -> None:
        """Make a checkpoint of `step`, unless there is one or nothing was trained."""
        if step == self._saved:
            return
        began = time.monotonic()
        data = self._first.driver.saving() if self._first else {}
        scratch = Path(self._ranks.broadcast(str(self._first.store.begin(step)) if self._first else None))
        self._engine.save(scratch / MEGATRON)
        parts = self._ranks.gather(fingerprints(scratch, self._ranks.rank, self._ranks.world))
        if self._first:
            files = {name: tuple(f) for part in parts for name, f in part.items()}
            self._first.store.commit(step, files, self._engine.layout, self._digest, data)
            self._first.driver.saved(self._first.store.checkpoints(), time.monotonic() - began)
        self._saved = step

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

    def _restore(self, step: int) -> None:
        """Every rank checks its share of the files before any is loaded."""
        manifest = read_manifest(self._root, step)
        assert manifest is not None, f"step {step} was chosen by rank 0"
        found = self._ranks.gather(manifest.corruption(self._root, self._ranks.rank, self._ranks.world))
        if any(found):
            raise RuntimeError(f"global_step_{step}: {next(filter(None, found))}")
        self._engine.load(names.step_dir(self._root, step) / MEGATRON)
