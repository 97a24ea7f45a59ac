"""Batches on disk: the seam that separates the halves of the loop. A replayed batch is bit-equal to the recorded one.

A file is in the format of safetensors (docs/data-and-rewards.md): the columns of the batch by their names, the arrays of its trajectories
(arrays.py), and as metadata, in JSON, `step`, `metrics` and the texts of `data_source`.
"""

import base64
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from rljob_api import names
from rljob_trainer import arrays
from rljob_trainer.batch import Batch, Columns
from rljob_trainer.failure import ConfigurationError


def record(root: Path, batch: Batch) -> None:
    """Write a whole batch below the checkpoint path, whole or not at all."""
    file = names.batch_file(root, batch.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(file.name + ".tmp")
    scratch.write_bytes(encode(batch))
    scratch.replace(file)


def replay(directory: Path, step: int) -> Batch:
    """The batch of `step` from a directory that `record` filled. Raises ConfigurationError when it is not there."""
    file = directory / names.batch_file(directory, step).name
    if not file.is_file():
        rule = f"holds no batch of step {step}: there is no {file.name}"
        fix = "name the batches/ directory of a run that recorded at least spec.train.steps steps"
        raise ConfigurationError("spec.train.batches.replay", str(directory), rule, fix)
    return decode(file.read_bytes())


def encode(batch: Batch) -> bytes:
    columns = batch.columns.arrays()
    texts = {"step": batch.step, "metrics": dict(batch.metrics), "data_source": columns.pop("data_source").tolist()}
    return save(columns | arrays.flattened(batch.samples), {name: json.dumps(value) for name, value in texts.items()})


def decode(content: bytes) -> Batch:
    length = int.from_bytes(content[:8], "little")
    metadata = {name: json.loads(text) for name, text in json.loads(content[8 : 8 + length])["__metadata__"].items()}
    found = load(content) | {"data_source": np.array(metadata["data_source"], np.str_)}
    columns = Columns(**{field.name: found[field.name] for field in fields(Columns)})
    trajectories = arrays.trajectories_of(found, columns, range(len(columns)))
    return Batch(metadata["step"], columns, trajectories, metadata["metrics"])


def to_text(batch: Batch) -> str:
    return base64.b64encode(encode(batch)).decode()


def from_text(text: str) -> Batch:
    return decode(base64.b64decode(text))
