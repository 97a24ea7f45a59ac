"""The store of a job's checkpoints, as rank 0 of one attempt sees it. Files and rules only: no torch, no other rank."""

import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Checkpoint, Resume
from rljob_trainer.checkpoint.fence import FencedOut, claim, newest
from rljob_trainer.checkpoint.files import sync_directory
from rljob_trainer.checkpoint.lineage import choose, inherited, refuse_foreign_job
from rljob_trainer.checkpoint.manifest import STEP_DIRECTORY, Files, Manifest, read_manifest, read_manifests
from rljob_trainer.failure import ConfigurationError

log = logging.getLogger(__name__)


class Store:
    """Open it once per attempt, on rank 0, before anything is trained."""

    def __init__(self, root: Path, job_uid: str, attempt: int, model: str, resume: Resume, keep_last: int):
        """Claims the fence and decides where the attempt starts.

        `model`: fingerprint of the model's configuration; a checkpoint of another model is refused.
        Raises FencedOut when a newer attempt of this job was here, ConfigurationError for what only the user can mend.
        """
        self._root, self._job_uid, self._attempt, self._model, self._keep_last = (
            root,
            job_uid,
            attempt,
            model,
            keep_last,
        )
        _make(root)
        self._refuse_older_attempt()
        refuse_foreign_job(root, job_uid)
        lineage, self.start = choose(root, inherited(root), resume, job_uid, model)
        self._lineage = lineage
        self._fence = claim(root, job_uid, attempt, [m.entry() for m in lineage])

    start: Manifest | None
    """The checkpoint that the attempt starts from; None: from the model."""

    def checkpoints(self) -> list[Checkpoint]:
        """The complete ones of the lineage, oldest first."""
        return [m.describe(self._root) for m in self._lineage]

    def check(self) -> None:
        """Raises FencedOut when a newer attempt has claimed the directory."""
        fence = newest(self._root)
        if fence is None or fence.seq != self._fence.seq:
            owner = f"attempt {fence.attempt} of job {fence.job_uid}" if fence else "nobody: the fence was deleted"
            raise FencedOut(f"{self._root} now belongs to {owner}; this is attempt {self._attempt} of {self._job_uid}")

    def begin(self, step: int) -> Path:
        """An empty directory for all ranks to write the checkpoint of `step` into. Raises FencedOut."""
        self.check()
        scratch = self._scratch(step)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        return scratch

    def commit(self, step: int, files: Files, layout: str, digest: str, data: Mapping[str, int]) -> None:
        """Make what `begin` gave out a checkpoint, then delete what keepLast does not cover. Call when every rank has written. Raises FencedOut."""
        self.check()
        replaced = self._make_room(step)
        self._scratch(step).rename(names.step_dir(self._root, step))
        sync_directory(self._root)
        parent = self._lineage[-1].step if self._lineage else None
        manifest = Manifest(
            step,
            self._fence.seq,
            self._attempt,
            self._job_uid,
            parent,
            layout,
            True,
            digest,
            self._model,
            dict(data),
            time.time(),
            files,
        )
        manifest.write(self._root)
        self._lineage.append(manifest)
        if replaced:
            shutil.rmtree(replaced)
        self._prune()

    def _scratch(self, step: int) -> Path:
        return self._root / f"global_step_{step}.tmp-{self._fence.seq}"

    def _refuse_older_attempt(self) -> None:
        fence = newest(self._root)
        if fence and fence.job_uid == self._job_uid and fence.attempt > self._attempt:
            raise FencedOut(f"attempt {fence.attempt} has started; this is attempt {self._attempt}")

    def _make_room(self, step: int) -> Path | None:
        """Move aside what an abandoned branch or a kill has left under the step's name."""
        target = names.step_dir(self._root, step)
        if not target.exists():
            return None
        held = read_manifest(self._root, step)
        if held and held.seq > self._fence.seq:
            raise FencedOut(f"{target} was written by a newer attempt")
        assert held is None or held not in self._lineage, f"step {step} is saved twice in one lineage"
        aside = target.with_name(f"{target.name}.tmp-{self._fence.seq}-replaced")
        shutil.rmtree(aside, ignore_errors=True)
        return target.rename(aside)

    def _prune(self) -> None:
        """Everything but the last keepLast of the lineage: older ones, abandoned branches, scratch of attempts that were killed."""
        self.check()
        self._lineage, dropped = self._lineage[-self._keep_last :], self._lineage[: -self._keep_last]
        kept = {m.entry() for m in self._lineage}
        abandoned = [m for m in read_manifests(self._root) if m.entry() not in kept and m.seq < self._fence.seq]
        for step in sorted({m.step for m in dropped} | {m.step for m in abandoned}):
            names.manifest_file(self._root, step).unlink(
                missing_ok=True
            )  # first: half a checkpoint must not look like one
            shutil.rmtree(names.step_dir(self._root, step), ignore_errors=True)
        for directory in self._root.glob("global_step_*.tmp-*"):
            if _scratch_seq(directory) < self._fence.seq:
                shutil.rmtree(directory, ignore_errors=True)


def _scratch_seq(directory: Path) -> int:
    step, _, rest = directory.name.partition(".tmp-")
    assert STEP_DIRECTORY.fullmatch(step), directory
    return int(rest.partition("-")[0])


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        fix = "mount a volume that all trainer pods may write to in spec.volumes"
        raise ConfigurationError("spec.checkpoint.path", str(root), f"cannot be written: {error}", fix) from error
