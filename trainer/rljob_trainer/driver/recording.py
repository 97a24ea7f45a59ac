"""Batches on disk: the seam that separates the halves of the loop. A replayed batch is bit-equal to the recorded one."""

import gzip
from pathlib import Path

from rljob_api import names
from rljob_trainer.batch import StepBatch
from rljob_trainer.failure import ConfigurationError


def record(root: Path, batch: StepBatch) -> None:
    """Write it below the checkpoint path, whole or not at all."""
    file = names.batch_file(root, batch.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(file.name + ".tmp")
    scratch.write_bytes(gzip.compress(batch.to_json().encode(), mtime=0))
    scratch.replace(file)


def replay(directory: Path, step: int) -> StepBatch:
    """The batch of `step` from a directory that `record` filled. Raises ConfigurationError when it is not there."""
    file = directory / names.batch_file(directory, step).name
    if not file.is_file():
        rule = f"holds no batch of step {step}: there is no {file.name}"
        fix = "name the batches/ directory of a run that recorded at least spec.train.steps steps"
        raise ConfigurationError("spec.train.batches.replay", str(directory), rule, fix)
    return StepBatch.from_json(gzip.decompress(file.read_bytes()).decode())
