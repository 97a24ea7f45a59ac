"""A run's directory in place of a model's: `model.path` may name the `checkpoint.path` of another job, whose newest export is meant.

It is chosen once. The choice is written next to the checkpoints of the job that begins from it, so that all its pods read the same model, and so do
attempts that come after the other run has gone on.
"""

import json
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control
from rljob_trainer.textfile import read_text

CHOSEN = "began-from.json"
"""Below checkpoint.path: `{"run": "/data/runs/sft", "model": "/data/runs/sft/exports/step_32"}`."""

log = logging.getLogger(__name__)


def newest_export(run: Path) -> Path | None:
    """The complete export of the greatest step below a run's directory; None: there is none, or the directory is a model's own. Raises OSError."""
    if (run / "config.json").is_file():
        return None
    return max(_exports(run), default=(0, None), key=lambda export: export[0])[1]


def _exports(run: Path) -> Iterator[tuple[int, Path]]:
    """With their steps: those of their own, and those in complete checkpoints."""
    for directory in names.exports_dir(run).glob("step_*"):
        yield _step(directory), directory
    for manifest in run.glob("global_step_*/manifest.json"):
        step = _step(manifest.parent)
        if (names.huggingface_dir(run, step) / "config.json").is_file():
            yield step, names.huggingface_dir(run, step)


def _step(directory: Path) -> int:
    """-1 for what is no step's, as one that is being written."""
    text = directory.name.rpartition("_")[2]
    return (
        int(text)
        if text.isdecimal() and (directory.name.startswith("global") or (directory / "config.json").is_file())
        else -1
    )


def began_from(path: Path, checkpoints: Path) -> Path:
    """The model of a job whose `model.path` is `path`, by what lies next to its checkpoints. Raises OSError."""
    return _read(checkpoints / CHOSEN, path) or path


def with_model(control: Control) -> Control:
    """The control with the export in place of a run's directory. Where a volume is away it stays as it is: whoever reads the model says so."""
    spec = control.spec
    try:
        chosen = _chosen(Path(spec.model.path), Path(spec.checkpoint.path))
    except OSError as error:
        log.warning("spec.model.path = %s: %s", spec.model.path, error)
        return control
    if chosen is None:
        return control
    model = spec.model.model_copy(update={"path": str(chosen)})
    return control.model_copy(update={"spec": spec.model_copy(update={"model": model})})


def _chosen(run: Path, checkpoints: Path) -> Path | None:
    """What was chosen before for this run, or else its newest export now."""
    file = checkpoints / CHOSEN
    if (earlier := _read(file, run)) is not None:
        return earlier
    export = newest_export(run)
    if export is None:
        return None
    checkpoints.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{CHOSEN}.{secrets.token_hex(4)}")
    scratch.write_text(json.dumps({"run": str(run), "model": str(export)}) + "\n")
    try:
        os.link(scratch, file)  # the first of several pods decides
    except FileExistsError:
        if _read(file, run) is None:  # of another run, which the spec named before
            scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
    return _read(file, run) or export


def _read(file: Path, run: Path) -> Path | None:
    try:
        held = json.loads(read_text(file) or "{}")
    except ValueError:
        return None
    return Path(held["model"]) if held.get("run") == str(run) else None
