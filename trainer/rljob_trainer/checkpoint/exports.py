"""The Hugging Face directories that a run has exported: which are complete, which are kept, and how another job begins from one.

`model.path` may name the `checkpoint.path` of another job, whose newest export is meant. It is chosen once. The choice is written next to the
checkpoints of the job that begins from it, so that all its pods read the same model, and so do attempts that come after the other run has gone on.
"""

import json
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Control
from rljob_api.rules.engine import Violation
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.files import remove
from rljob_trainer.textfile import read_text

log = logging.getLogger(__name__)
CHOSEN = "began-from.json"
"""Below checkpoint.path: `{"run": "/data/runs/sft", "model": "/data/runs/sft/exports/step_32"}`."""


def complete(root: Path) -> dict[int, Path]:
    """[step] -> directory of each complete export below `root`, oldest first. One that is being written has another name."""
    exported = ((d.name.removeprefix("step_"), d) for d in names.exports_dir(root).glob("step_*"))
    return dict(sorted((int(step), d) for step, d in exported if step.isdecimal()))


def superseded(root: Path, every: int, kept: int) -> list[Path]:
    """Periodic exports (steps divisible by `every`) except the `kept` newest. Exports of other steps are never deleted."""
    periodic = [d for step, d in complete(root).items() if step % every == 0]
    return periodic[:-kept]


def prune(root: Path, every: int, kept: int) -> None:
    """Delete superseded exports. One that cannot be deleted is logged and tried again at the next export."""
    for directory in superseded(root, every, kept):
        try:
            remove(directory)
        except OSError as error:
            log.warning("%s is not deleted: %s", directory, error)


def newest_export(run: Path) -> Path | None:
    """The complete export of the greatest step below a run's directory; None: there is none, or the directory is a model's own. Raises OSError."""
    if _is_model(run):
        return None
    return max(_exports(run), default=(0, None), key=lambda export: export[0])[1]


def _exports(run: Path) -> Iterator[tuple[int, Path]]:
    """With their steps: those of their own, and those in complete checkpoints."""
    for step, directory in complete(run).items():
        if _is_model(directory):
            yield step, directory
    for manifest in run.glob("global_step_*/manifest.json"):
        number = manifest.parent.name.removeprefix("global_step_")
        if not number.isdecimal():
            continue
        export = names.huggingface_dir(run, int(number))
        if _is_model(export):
            yield int(number), export


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()


def began_from(path: Path, checkpoints: Path) -> Path:
    """The model of a job whose `model.path` is `path`, by what lies next to its checkpoints. Raises OSError."""
    return _read(checkpoints / CHOSEN, path) or path


def violations(spec: RLJobSpec) -> list[Violation]:
    """Whether the export that the job began from is gone: a run deletes those beyond its keepExports and keepLast. Raises OSError."""
    began = _held(Path(spec.checkpoint.path) / CHOSEN)
    if began.get("model") != spec.model.path or _is_model(Path(spec.model.path)):
        return []
    rule = f"this job began from {spec.model.path}, its newest export then, which is there no longer"
    fix = "copy that export back to its place, or begin with another checkpoint.path from an export that its run keeps"
    return [Violation("spec.model.path", began["run"], rule, fix)]


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
    return control.model_copy(update={"spec": beginning_from(spec, chosen)})


def beginning_from(spec: RLJobSpec, model: Path) -> RLJobSpec:
    """The spec with this `model.path`."""
    return spec.model_copy(update={"model": spec.model.model_copy(update={"path": str(model)})})


def _chosen(run: Path, checkpoints: Path) -> Path | None:
    """What was chosen before for this run, or else its newest export now."""
    file = checkpoints / CHOSEN
    earlier = _read(file, run)
    if earlier is not None:
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
    held = _held(file)
    return Path(held["model"]) if held.get("run") == str(run) else None


def _held(file: Path) -> dict[str, str]:
    """Empty where nothing was chosen, or what was cannot be read."""
    try:
        held = json.loads(read_text(file) or "{}")
    except ValueError:
        return {}
    return held if isinstance(held, dict) and held.keys() >= {"run", "model"} else {}
