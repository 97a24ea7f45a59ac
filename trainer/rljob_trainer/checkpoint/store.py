"""The store of a job's checkpoints, for rank 0 of one attempt. Files and rules only: no torch, no communication."""

import logging
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from rljob_api import names
from rljob_api.protocol import Checkpoint
from rljob_api.spec.run import MOST_CHECKPOINTS
from rljob_trainer.checkpoint.fence import Fence, FencedOut, claim, extend, newest
from rljob_trainer.checkpoint.files import make_directory, sync_directory, sync_names
from rljob_trainer.checkpoint.lineage import Run, Start, choose, refuse_foreign_job
from rljob_trainer.checkpoint.manifest import (
    BUFFERS,
    SCRATCH,
    STEP_DIRECTORY,
    CheckpointManifest,
    Contents,
    fingerprints,
    read_manifest,
    read_manifests,
)
from rljob_trainer.failure import ConfigurationError, PeerLost, is_full, is_outage

log = logging.getLogger(__name__)


class Store:
    """Opened once per attempt, on rank 0, before anything is trained."""

    def __init__(self, root: Path, run: Run):
        """Claim the fence and choose the checkpoint to start from. Then delete unfinished saves of former attempts: one that still writes finds the
        newer fence.

        Raises FencedOut when a newer attempt of this job was here, ConfigurationError for what only the user can fix.
        """
        self._root, self._run = root, run
        _make(root)
        self._refuse_older_attempt()
        refuse_foreign_job(root, run.job_uid)
        self._lineage, self.start = choose(root, run)
        self._fence = self._claim()
        _delete_unfinished(root)

    start: Start | None
    """The checkpoint that the attempt starts from; None: from the model."""

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints of the lineage, oldest first. At most as many as a report holds: a kill before a deletion leaves one more."""
        return [m.describe(self._root) for m in self._lineage[-MOST_CHECKPOINTS:]]

    def check(self) -> None:
        """Raises FencedOut when a newer attempt has claimed the directory."""
        fence = newest(self._root)
        if fence is None or fence.seq != self._fence.seq:
            owner = f"attempt {fence.attempt} of job {fence.job_uid}" if fence else "nobody: the fence was deleted"
            raise FencedOut(
                f"{self._root} now belongs to {owner}; this is attempt {self._run.attempt} of {self._run.job_uid}"
            )

    def begin(self, step: int) -> Path:
        """Make an empty directory into which all ranks write the checkpoint of `step`. Raises FencedOut.

        Unfinished saves of former attempts, which may have been cut off and have gone on, are deleted first: the volume may not have room for both.
        """
        self.check()
        _delete_unfinished(self._root, before=self._fence.seq)
        scratch = self._scratch(step)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        return scratch

    def abandon(self, step: int) -> None:
        """Delete what has been written of the checkpoint of `step`, as far as that is possible.

        Raises FencedOut: a newer attempt, which deletes what this one writes, is why the save has failed.
        """
        self.check()
        shutil.rmtree(self._scratch(step), ignore_errors=True)

    def commit(self, contents: Contents) -> None:
        """Turn the directory of `begin` into a checkpoint, then delete checkpoints beyond keepLast. All ranks must have written, and every file must
        be durable. Raises FencedOut."""
        self.check()
        sync_names(self._scratch(contents.step))
        manifest = CheckpointManifest(
            **{f.name: getattr(contents, f.name) for f in fields(contents)},
            seq=self._fence.seq,
            attempt=self._run.attempt,
            job_uid=self._run.job_uid,
            parent=self._lineage[-1].step if self._lineage else None,
            model=self._run.model,
            time=time.time(),
            chat=self._run.chat,
            trained=self._run.trained,
        )
        self._put(manifest)
        self._lineage.append(manifest)
        self._fence = extend(self._root, self._fence, [m.entry() for m in self._lineage])
        self._prune()

    def renew_buffer(self, step: int, write: Callable[[Path], None]) -> None:
        """Replace the rollout buffer in the checkpoint of `step`, the newest one. `write` makes the directory that it gets, or none when the buffer
        is empty. A kill leaves the checkpoint with the one or the other. Raises FencedOut."""
        held, target = self._lineage[-1], names.step_dir(self._root, step)
        assert held.step == step, "what was saved last is renewed"
        name = next(name for name in BUFFERS if name != held.buffer)
        scratch = self.begin(step)
        try:
            write(scratch / name)
        except (OSError, PeerLost):
            self.abandon(step)
            raise
        files = {
            file: fingerprint for file, fingerprint in held.files.items() if not file.startswith(f"{held.buffer}/")
        }
        manifest = replace(held, buffer=name, files=files | fingerprints(scratch))
        sync_names(scratch)
        shutil.rmtree(target / name, ignore_errors=True)  # left by a kill before the manifest was replaced
        if (scratch / name).exists():
            (scratch / name).rename(target / name)
        sync_directory(target)
        manifest.write(target)
        self._lineage[-1] = manifest
        shutil.rmtree(target / held.buffer, ignore_errors=True)
        shutil.rmtree(scratch)

    def _claim(self) -> Fence:
        """Unfinished saves may have filled the volume, so that not even the fence can be written. Then they are deleted first."""
        entries = [m.entry() for m in self._lineage]
        try:
            return claim(self._root, self._run.job_uid, self._run.attempt, entries)
        except OSError as error:
            if not is_full(error):
                raise
        _delete_unfinished(self._root)
        return claim(self._root, self._run.job_uid, self._run.attempt, entries)

    def _scratch(self, step: int) -> Path:
        return self._root / f"global_step_{step}{SCRATCH}{self._fence.seq}"

    def _put(self, manifest: CheckpointManifest) -> None:
        """Commit with one rename: the manifest is in the directory before it gets the name of a checkpoint."""
        target, scratch = names.step_dir(self._root, manifest.step), self._scratch(manifest.step)
        replaced = self._make_room(target, manifest.step)
        manifest.write(scratch)
        scratch.rename(target)
        sync_directory(self._root)
        if replaced:
            shutil.rmtree(replaced)

    def _refuse_older_attempt(self) -> None:
        fence = newest(self._root)
        if fence and fence.job_uid == self._run.job_uid and fence.attempt > self._run.attempt:
            raise FencedOut(f"attempt {fence.attempt} has started; this is attempt {self._run.attempt}")

    def _make_room(self, target: Path, step: int) -> Path | None:
        """Rename a directory of the step's name, which an abandoned branch or a user has left. Returns its new name; None: there was none."""
        if not target.exists():
            return None
        held = read_manifest(target)
        if held and held.seq > self._fence.seq:
            raise FencedOut(f"{target} was written by a newer attempt")
        assert held is None or held not in self._lineage, f"step {step} is saved twice in one lineage"
        return self._put_aside(target)

    def _put_aside(self, directory: Path) -> Path:
        """Rename a directory to that of an unfinished save, which the next attempt deletes if this one is killed before it does."""
        aside = directory.with_name(f"{directory.name}{SCRATCH}{self._fence.seq}-old")
        shutil.rmtree(aside, ignore_errors=True)
        return directory.rename(aside)

    def _prune(self) -> None:
        """Delete checkpoints of the lineage beyond keepLast, and those of abandoned branches."""
        self.check()
        count = self._run.keep_last
        self._lineage, dropped = self._lineage[-count:], self._lineage[:-count]
        kept = {m.entry() for m in self._lineage}
        abandoned = [m for m in read_manifests(self._root) if m.entry() not in kept and m.seq < self._fence.seq]
        for step in sorted({m.step for m in dropped} | {m.step for m in abandoned}):
            directory = names.step_dir(self._root, step)
            if directory.exists():  # somebody may have deleted it by hand
                shutil.rmtree(self._put_aside(directory), ignore_errors=True)


def _delete_unfinished(root: Path, before: float = math.inf) -> None:
    """Delete what attempts with fences below `before` have written of checkpoints that are not complete."""
    for directory in root.glob(f"global_step_*{SCRATCH}*"):
        if _scratch_seq(directory) < before:
            shutil.rmtree(directory, ignore_errors=True)


def _scratch_seq(directory: Path) -> int:
    step, _, rest = directory.name.partition(SCRATCH)
    assert STEP_DIRECTORY.fullmatch(step), directory
    return int(rest.partition("-")[0])


def _make(root: Path) -> None:
    try:
        make_directory(root)
        probe = root / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        if is_outage(error) or is_full(error):
            raise
        fix = "mount a volume that all trainer pods may write to in spec.volumes"
        raise ConfigurationError("spec.checkpoint.path", str(root), f"cannot be written: {error}", fix) from error
