"""Which checkpoints an attempt inherits, and which one it starts from. Resuming fails closed: doubt is an error, never a start from nothing."""

import logging
from pathlib import Path

from rljob_api.protocol import Resume
from rljob_trainer.checkpoint.fence import fences, newest
from rljob_trainer.checkpoint.manifest import Manifest, read_manifests
from rljob_trainer.failure import ConfigurationError

PATH, RESUME = "spec.checkpoint.path", "spec.checkpoint.resume"

log = logging.getLogger(__name__)


def inherited(root: Path) -> list[Manifest]:
    """The valid manifests by step: made under the newest fence, or listed by it.

    Raises ConfigurationError for a manifest that no fence of this directory can explain: somebody copied it here.
    """
    fence = newest(root)
    last, listed = (fence.seq, set(fence.lineage)) if fence else (0, set())
    manifests = read_manifests(root)
    for manifest in manifests:
        if manifest.seq > last:
            rule = f"global_step_{manifest.step} was not made in this directory: its fence number {manifest.seq} was never given out here"
            raise ConfigurationError(PATH, str(root), rule, "move it away, or copy the whole directory with its fence/")
    return [m for m in manifests if m.seq == last or m.entry() in listed]


def refuse_foreign_job(root: Path, job_uid: str) -> None:
    """A directory may pass from a finished job to its successor, not back: then two live jobs fight over it."""
    owners = [f.job_uid for f in fences(root)]
    if owners and owners[-1] != job_uid and job_uid in owners:
        rule = f"another job (uid {owners[-1]}) has begun to write there"
        raise ConfigurationError(PATH, str(root), rule, "give each job a directory of its own")


def choose(
    root: Path, valid: list[Manifest], resume: Resume, job_uid: str, model: str
) -> tuple[list[Manifest], Manifest | None]:
    """The lineage from here on and the checkpoint to start from (its last; None: from the model).

    Raises ConfigurationError when the policy forbids what is there, or the checkpoint that should be used cannot be.
    """
    first = all(f.job_uid != job_uid for f in fences(root))
    if resume.policy == "never" and first and valid:
        rule = f"`never`, but {root} holds a complete checkpoint of step {valid[-1].step}"
        raise ConfigurationError(
            RESUME, "never", rule, "use another spec.checkpoint.path, or set auto to go on from it"
        )
    lineage = _cut(root, valid, resume.step)
    if not lineage:
        if resume.policy == "required":
            raise ConfigurationError(
                RESUME, "required", f"{root} holds no complete checkpoint", "correct spec.checkpoint.path, or set auto"
            )
        return [], None
    start = lineage[-1]
    _require_usable(root, start, lineage, model)
    return [m for m in lineage if _whole(root, m)], start


def _cut(root: Path, valid: list[Manifest], step: int | None) -> list[Manifest]:
    """The lineage up to the step that was asked for (0: the model itself); later checkpoints leave it."""
    if step is None:
        return valid
    if step == 0:
        return []
    kept = [m for m in valid if m.step <= step]
    if not kept or kept[-1].step != step:
        steps = ", ".join(str(m.step) for m in valid) or "none"
        raise ConfigurationError(
            "resume step",
            str(step),
            f"{root} has no complete checkpoint of it; there are: {steps}",
            "resume from one of these",
        )
    return kept


def _require_usable(root: Path, start: Manifest, lineage: list[Manifest], model: str) -> None:
    if damage := start.damage(root):
        older = [m.step for m in lineage[:-1] if not m.damage(root)]
        fix = "restore the file" + (f", or resume --from-step {older[-1]}" if older else "")
        raise ConfigurationError(PATH, str(root), f"global_step_{start.step} is damaged: {damage}", fix)
    if start.model != model:
        rule = f"global_step_{start.step} belongs to another model than spec.model.path: their config.json differ"
        raise ConfigurationError(PATH, str(root), rule, "correct spec.model.path, or use another spec.checkpoint.path")


def _whole(root: Path, manifest: Manifest) -> bool:
    damage = manifest.damage(root)
    if damage:
        log.warning("global_step_%d leaves the lineage: %s", manifest.step, damage)
    return not damage
