"""Batches on disk, to record a run's batches and train on them again (train.batches). A replayed batch is bit-equal to the recorded one.

A file is in the format of safetensors (docs/data-and-rewards.md): the columns of the batch (batch.py) and the arrays of its trajectories (arrays.py)
by their names, and as metadata, in JSON, `step`, `metrics` and the texts of `data_source`; of a recording also `temperature`, at which its samples
were drawn: log-probabilities are those at that temperature. It is written piece by piece: safetensors' own writer
wants every array whole and copies it, with the interpreter locked.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api import names
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire import arrays
from rljob_trainer.wire.batch import Array, Batch, Columns

KINDS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "|u1", "F64": "<f8", "F32": "<f4", "BOOL": "|b1"}
"""safetensors' names of numpy's types."""
NAMES = {np.dtype(kind): name for name, kind in KINDS.items()}


def record(root: Path, batch: Batch, temperature: float) -> None:
    """Write a whole batch, sampled at this temperature, below the checkpoint path, atomically."""
    file = names.batch_file(root, batch.step)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, batch, temperature=temperature)


def write(file: Path, batch: Batch, **further: float) -> None:
    """Write a whole batch, atomically. `further`: metadata."""
    scratch = file.with_name(file.name + ".tmp")
    columns = batch.columns.arrays()
    texts = {"step": batch.step, "metrics": dict(batch.metrics), "data_source": columns.pop("data_source").tolist()}
    texts |= further
    sizes = {name: len(column) for name, column in columns.items()} | arrays.sizes(batch.samples)
    kinds = {name: column.dtype for name, column in columns.items()} | {n: np.dtype(k) for n, k in arrays.KINDS.items()}
    order = sorted(kinds, key=lambda name: -kinds[name].itemsize)  # so that every array is aligned
    pieces: dict[str, Iterable[Array]] = {name: [column] for name, column in columns.items()}
    pieces |= arrays.rows(batch.samples)
    with scratch.open("wb") as stream:
        stream.write(_header({name: (kinds[name], sizes[name]) for name in order}, texts))
        for chunk in arrays.chunks(chain.from_iterable(pieces[name] for name in order)):
            stream.write(chunk)
    scratch.replace(file)


def replay(directory: Path, step: int, temperature: float) -> Batch:
    """The batch of `step` from a directory that `record` filled. Raises ConfigurationError when it is not there, and when its samples were drawn at
    another temperature than the job's: the ranks would measure other log-probabilities of them."""
    file = directory / names.batch_file(directory, step).name
    if not file.is_file():
        rule = f"holds no batch of step {step}: there is no {file.name}"
        fix = "name the batches/ directory of a run that recorded at least spec.train.steps steps"
        raise ConfigurationError("spec.train.batches.replay", str(directory), rule, fix)
    columns, texts = _read(file)
    recorded = texts.get("temperature", "unknown")
    if recorded != temperature:
        rule = f"{file.name} of spec.train.batches.replay was sampled at temperature {recorded}, and has log-probabilities at that one"
        fix = "set the temperature at which the batches were recorded, or record them again"
        raise ConfigurationError("spec.rollout.sampling.temperature", temperature, rule, fix)
    return _batch(columns, texts)


def read(file: Path) -> Batch:
    """The batch that `write` wrote."""
    return _batch(*_read(file))


def _batch(columns_read: dict[str, Array], texts: Mapping[str, Any]) -> Batch:
    columns_read["data_source"] = np.array(texts["data_source"], np.str_)
    columns = Columns(**{field.name: columns_read[field.name] for field in fields(Columns)})
    trajectories = arrays.trajectories_of(columns_read, columns, range(len(columns)))
    return Batch(texts["step"], columns, trajectories, texts["metrics"])


def _header(described: Mapping[str, tuple[np.dtype[Any], int]], texts: Mapping[str, Any]) -> bytes:
    """8 bytes of length, then JSON, filled up to a multiple of 8."""
    ends = accumulate((kind.itemsize * size for kind, size in described.values()), initial=0)
    header: dict[str, Any] = {"__metadata__": {name: json.dumps(value) for name, value in texts.items()}}
    for (name, (kind, size)), offsets in zip(described.items(), pairwise(ends), strict=True):
        header[name] = {"dtype": NAMES[kind], "shape": [size], "data_offsets": list(offsets)}
    body = json.dumps(header).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def _read(file: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays and metadata."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        texts = {name: json.loads(text) for name, text in header.pop("__metadata__").items()}
        columns: dict[str, Array] = {}
        for name, described in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            columns[name] = np.empty(described["shape"], KINDS[described["dtype"]])
            stream.readinto(arrays.raw(columns[name]))
    return columns, texts
