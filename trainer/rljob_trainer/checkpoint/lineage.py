"""Which checkpoints an attempt inherits, and which one it starts from. In doubt resuming is an error; it never silently starts from the model."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import names
from rljob_api.protocol import RESUME_STEP, Resume
from rljob_api.spec import RLJobSpec
from rljob_trainer.checkpoint.fence import fences, newest
from rljob_trainer.checkpoint.files import appears
from rljob_trainer.checkpoint.manifest import (
    PATH,
    SCRATCH,
    STEP_DIRECTORY,
    CheckpointManifest,
    read_manifest,
    read_manifests,
)
from rljob_trainer.failure import ConfigurationError

RESUME = "spec.checkpoint.resume"
FIELD = "spec.checkpoint.resumeFrom"
"""A checkpoint that the user names, in this directory or another."""
FREEZE = "spec.model.freeze"
FIX = "name a global_step_N directory that holds a manifest.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The attempt that opens the directory."""

    job_uid: str
    attempt: int
    model: str
    """sha256 of the model's config.json. A checkpoint of another model is refused."""
    chat: Mapping[str, Any] = field(default_factory=dict)
    """The spec's task, and its data.chatTemplate: with them an export says where a turn ends."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """See trained_as. A checkpoint of a job whose parameters learnt in another way is refused."""
    resume: Resume
    resume_from: Path | None
    """A checkpoint for the job's first attempt to start from."""
    keep_last: int


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint that an attempt starts from."""

    directory: Path
    manifest: CheckpointManifest


def inherited(root: Path) -> list[CheckpointManifest]:
    """Manifests of the valid checkpoints by step: those made under the newest fence, or listed by it.

    Raises ConfigurationError for a manifest that no fence of this directory can explain: somebody copied it here.
    """
    fence = newest(root)
    last, listed = (fence.seq, set(fence.lineage)) if fence else (0, set())
    manifests = read_manifests(root)
    for manifest in manifests:
        if manifest.seq > last:
            rule = f"global_step_{manifest.step} was not made in this directory: its fence number {manifest.seq} was never given out here"
            fix = "move it away, or copy the whole directory with its fence/"
            raise ConfigurationError(PATH, str(root), rule, fix)
    return [m for m in manifests if m.seq == last or m.entry() in listed]


def refuse_foreign_job(root: Path, job_uid: str) -> None:
    """Raise ConfigurationError when another job has written to the directory after this one: two live jobs would fight over it. A new job may take
    over the directory of a finished one."""
    owners = [f.job_uid for f in fences(root)]
    if owners and owners[-1] != job_uid and job_uid in owners:
        rule = f"another job (uid {owners[-1]}) has begun to write there"
        raise ConfigurationError(PATH, str(root), rule, "give each job a directory of its own")


def choose(root: Path, run: Run) -> tuple[list[CheckpointManifest], Start | None]:
    """The checkpoints of `root` that the attempt inherits, and the checkpoint to start from (None: from the model).

    Raises ConfigurationError when the resume policy forbids it, all that the job has saved is gone, or the checkpoint to start from cannot be used.
    """
    first = all(f.job_uid != run.job_uid for f in fences(root))
    valid = inherited(root)
    steps = _saved(root, run) if run.resume.step is None and not valid else []
    if steps:
        if not appears(root, lambda: bool(inherited(root))):
            raise _all_gone(root, steps)
        valid = inherited(root)
    if run.resume.policy == "never" and first and valid:
        rule = f"`never`, but {root} holds a complete checkpoint of step {valid[-1].step}"
        fix = "use another spec.checkpoint.path, or set auto to resume from it"
        raise ConfigurationError(RESUME, "never", rule, fix)
    if run.resume_from and run.resume.step is None and (first or not valid):
        return _from_named(root, valid, run, run.resume_from)
    lineage = _cut(root, valid, run.resume.step)
    if not lineage:
        if run.resume.policy == "required" and run.resume.step != 0:
            fix = "correct spec.checkpoint.path, or set auto"
            raise ConfigurationError(RESUME, "required", f"{root} holds no complete checkpoint", fix)
        return [], None
    start = Start(names.step_dir(root, lineage[-1].step), lineage[-1])
    _require_usable(PATH, start, valid, run)
    return _undamaged(root, lineage), start


def _saved(root: Path, run: Run) -> list[int]:
    """Steps of checkpoints that this job should have in `root`: its newest fence lists them, and the operator knows the newest one."""
    fence = newest(root)
    listed = {step for step, _ in fence.lineage} if fence and fence.job_uid == run.job_uid else set[int]()
    return sorted(listed | ({run.resume.saved} if run.resume.saved is not None else set()))


def _all_gone(root: Path, steps: list[int]) -> ConfigurationError:
    """The job must not lose its training silently: the user decides whether it starts over."""
    held = ", ".join(f"global_step_{step}" for step in steps)
    rule = f"this job has saved {held} there, and no complete checkpoint of its lineage is left"
    fix = (
        "restore one and continue with `resume --from-step N`, or start over from the model with `resume --from-step 0`"
    )
    others = read_manifests(root)
    if others:
        left = names.step_dir(root, others[-1].step)
        fix += f"; a new job can start from {left}, which is complete but not of this lineage, through {FIELD}"
    return ConfigurationError(PATH, str(root), rule, fix)


def _from_named(
    root: Path, valid: list[CheckpointManifest], run: Run, directory: Path
) -> tuple[list[CheckpointManifest], Start]:
    """Start from resumeFrom. If it is one of `root`'s own checkpoints, later ones leave the lineage; otherwise the lineage is empty."""
    start = Start(directory, named(directory))
    siblings = valid if directory.resolve().parent == root.resolve() else read_manifests(directory.parent)
    _require_usable(FIELD, start, siblings, run)
    if start.manifest not in valid:
        return [], start
    return _undamaged(root, [m for m in valid if m.step <= start.manifest.step]), start


def _cut(root: Path, valid: list[CheckpointManifest], step: int | None) -> list[CheckpointManifest]:
    """The lineage up to the requested step (0: the model itself). Later checkpoints leave it."""
    if step is None:
        return valid
    if step == 0:
        return []
    kept = [m for m in valid if m.step <= step]
    if not kept or kept[-1].step != step:
        steps = ", ".join(str(m.step) for m in valid) or "none"
        rule = f"{root} has no complete checkpoint of it; there are: {steps}"
        raise ConfigurationError(RESUME_STEP, str(step), rule, "resume from one of these")
    return kept


def _require_usable(field: str, start: Start, siblings: list[CheckpointManifest], run: Run) -> None:
    """Raise ConfigurationError unless the checkpoint is undamaged and of this model. `siblings`: alternatives that the fix may name."""
    step, root = start.manifest.step, start.directory.parent
    damage = start.manifest.damage(start.directory)
    if damage:
        older = [m.step for m in siblings if m.step < step and not m.damage(names.step_dir(root, m.step))]
        fix = "restore the file" + (f", or {_instead(field, root, older[-1])}" if older else "")
        raise ConfigurationError(field, str(start.directory), f"global_step_{step} is damaged: {damage}", fix)
    if start.manifest.model != run.model:
        rule = f"global_step_{step} belongs to another model than spec.model.path: their config.json differ"
        raise ConfigurationError(
            field, str(start.directory), rule, "correct spec.model.path, or use another checkpoint"
        )
    require_alike(start.manifest, run.trained)


def trained_as(spec: RLJobSpec) -> dict[str, Any]:
    """What says which parameters a checkpoint holds, in which type, and what adapters add, by its field."""
    model, lora = spec.model, spec.model.lora
    return {
        "spec.model.dtype": model.dtype,
        FREEZE: sorted(model.freeze),
        "spec.model.lora.rank": lora and lora.rank,
        "spec.model.lora.alpha": lora and lora.alpha,
    }


def require_alike(manifest: CheckpointManifest, trained: Mapping[str, Any]) -> None:
    """Raises ConfigurationError unless the checkpoint's parameters are those of `trained`. More may be frozen than was."""
    for name, now in trained.items():
        before = manifest.trained.get(name, now)
        if before != now and not (name == FREEZE and set(before) <= set(now)):
            rule = f"global_step_{manifest.step} was trained with {_said(before)}"
            fix = "write that again, or train from the model in another spec.checkpoint.path"
            raise ConfigurationError(name, _said(now), rule, fix)


def _said(value: Any) -> str:
    return "none" if value is None else json.dumps(value).replace('"', "")


def _instead(field: str, root: Path, step: int) -> str:
    return f"resume --from-step {step}" if field == PATH else f"set {field} to {names.step_dir(root, step)}"


def _undamaged(root: Path, lineage: list[CheckpointManifest]) -> list[CheckpointManifest]:
    """The lineage without damaged checkpoints, which are logged."""
    damages = {m.step: m.damage(names.step_dir(root, m.step)) for m in lineage}
    for step, damage in damages.items():
        if damage:
            log.warning("global_step_%d leaves the lineage: %s", step, damage)
    return [m for m in lineage if not damages[m.step]]


def named(directory: Path) -> CheckpointManifest:
    """The manifest of `directory`. Raises ConfigurationError when it is not a complete checkpoint, with what it is instead."""
    if not directory.is_dir():
        raise ConfigurationError(FIELD, str(directory), "is not a directory that the trainer can see", FIX)
    manifest = read_manifest(directory, FIELD)
    if manifest:
        return manifest
    rule, fix = _explain(directory)
    raise ConfigurationError(FIELD, str(directory), rule, fix)


def _explain(directory: Path) -> tuple[str, str]:
    """Rule and fix: what a directory without a manifest seems to be instead, and what to name."""
    if (directory / "config.json").is_file():
        return "is a Hugging Face model, which has no optimizer and no data order", "set it as spec.model.path"
    if SCRATCH in directory.name:
        return "is not complete: it was still being written, or deleted", FIX
    if STEP_DIRECTORY.fullmatch(directory.name):
        return "is not complete: it has no manifest.json, which is written last", FIX
    manifest = next(filter(None, map(read_manifest, directory.parents)), None)
    if manifest:
        return "lies inside a checkpoint", f"name its directory global_step_{manifest.step}"
    held = read_manifests(directory)
    if held:
        steps = ", ".join(f"global_step_{m.step}" for m in held)
        return "is a directory of checkpoints, not one of them", f"name one of {steps}"
    return "is not a checkpoint of rljob: it has no manifest.json", FIX
