"""spec.checkpoint.resumeFrom: a checkpoint that somebody names, of this directory or another."""

from pathlib import Path

from rljob_trainer.checkpoint.manifest import SCRATCH, STEP_DIRECTORY, Manifest, read_manifest, read_manifests
from rljob_trainer.failure import ConfigurationError

FIELD = "spec.checkpoint.resumeFrom"
FIX = "name a global_step_N directory that holds a manifest.json"


def named(directory: Path) -> Manifest:
    """The manifest of `directory`. Raises ConfigurationError when it is not a complete checkpoint, with what it is instead."""
    if not directory.is_dir():
        raise ConfigurationError(FIELD, str(directory), "is not a directory that the trainer can see", FIX)
    if manifest := read_manifest(directory, FIELD):
        return manifest
    rule, fix = _explain(directory)
    raise ConfigurationError(FIELD, str(directory), rule, fix)


def _explain(directory: Path) -> tuple[str, str]:
    """What a directory without a manifest seems to be, and what to do."""
    if (directory / "config.json").is_file():
        return "is a Hugging Face model, which has no optimizer and no data order", "set it as spec.model.path"
    if SCRATCH in directory.name:
        return "is not complete: it was still being written, or deleted", FIX
    if STEP_DIRECTORY.fullmatch(directory.name):
        return "is not complete: it has no manifest.json, which is written last", FIX
    if manifest := next((m for d in directory.parents if (m := read_manifest(d))), None):
        return "lies inside a checkpoint", f"name its directory global_step_{manifest.step}"
    if held := read_manifests(directory):
        steps = ", ".join(f"global_step_{m.step}" for m in held)
        return "is a directory of checkpoints, not one of them", f"name one of {steps}"
    return "is not a checkpoint of rljob: it has no manifest.json", FIX
