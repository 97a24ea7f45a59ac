"""Uploads complete checkpoints and exports to spec.checkpoint.upload while training continues: one directory at a time, in a thread."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_api.spec.run import CheckpointSpec
from rljob_trainer.checkpoint.exports import complete
from rljob_trainer.checkpoint.files import tree
from rljob_trainer.checkpoint.manifest import read_manifest
from rljob_trainer.sources.upload import ObjectStore, Stopped

FIELD = "spec.checkpoint.upload"
COMPLETE = ("config.json", "adapter_config.json")
"""The file that is uploaded last of an exported model, and of exported adapters: its presence makes the copy complete."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Directory:
    """A complete directory of the run, to be uploaded."""

    path: Path
    files: tuple[str, ...]
    last: str
    """The file that is uploaded last."""
    step: int | None = None
    """Of a checkpoint; None for an export."""

    @staticmethod
    def of_checkpoint(path: Path) -> "Directory | None":
        """The files that its manifest lists; None when the checkpoint is gone."""
        manifest = read_manifest(path)
        last = names.manifest_file(path).name
        return Directory(path, tuple(manifest.files), last, manifest.step) if manifest else None

    @staticmethod
    def of_export(path: Path) -> "Directory | None":
        files = tuple(str(file.relative_to(path)) for file in tree(path)) if path.is_dir() else ()
        last = next((name for name in COMPLETE if name in files), None)
        return Directory(path, files, last) if last else None


class Uploads:
    """The uploads of one attempt. `begin` finds what an earlier attempt did not complete."""

    def __init__(self, checkpoint: CheckpointSpec, copied: Callable[[int, float], None]):
        """`copied`: called with the step of an uploaded checkpoint, and the seconds that it took."""
        self._root, self._copied = Path(checkpoint.path), copied
        self._address = checkpoint.upload
        self._store: ObjectStore | None = None
        self._waiting: dict[Path, Directory] = {}
        self._task: asyncio.Task[None] | None = None
        self._tried_again = False

    async def begin(self, checkpoints: Iterable[Path]) -> None:
        """Check that the store is writable, and queue what is complete on the volume and missing there. Raises ConfigurationError, OSError."""
        if self._address:
            self._store = ObjectStore(FIELD, self._address)
            await asyncio.to_thread(self._store.prove_writable)
            missing = await asyncio.to_thread(self._missing, list(checkpoints))
            self._add(missing)

    def checkpoint(self, path: Path) -> None:
        """Queue a checkpoint that is complete."""
        self._add([Directory.of_checkpoint(path)])

    def export(self, path: Path) -> None:
        """Queue an export that is complete."""
        self._add([Directory.of_export(path)])

    @property
    def moved(self) -> int:
        """Grows while something is uploaded."""
        return self._store.moved if self._store else 0

    def done(self) -> bool:
        """Whether everything is uploaded. An upload that failed in the background is tried once more; if it fails again, this raises the error."""
        if self._task is None or not self._task.done():
            return not self._waiting
        error = self._task.exception()
        if error is None or not self._waiting:
            return True
        if self._tried_again:
            raise error
        self._tried_again = True
        self._work()
        return False

    async def stop(self) -> None:
        """Stop uploading. The next attempt uploads the rest."""
        if self._store and self._task:
            self._store.stop()
            await asyncio.gather(self._task, return_exceptions=True)

    def _missing(self, checkpoints: list[Path]) -> list[Directory | None]:
        assert self._store
        exports = complete(self._root).values()
        directories = [*map(Directory.of_checkpoint, checkpoints), *map(Directory.of_export, exports)]
        return [
            d for d in directories if d and self._store.read(self._below(d, d.last)) != (d.path / d.last).read_bytes()
        ]

    def _below(self, directory: Directory, file: str = "") -> str:
        return str(directory.path.relative_to(self._root) / file)

    def _add(self, directories: Iterable[Directory | None]) -> None:
        added = {d.path: d for d in directories if d} if self._store else {}
        self._waiting |= added
        if added and (self._task is None or self._task.done()):
            self._work()

    def _work(self) -> None:
        self._task = asyncio.create_task(self._copy_all())

    async def _copy_all(self) -> None:
        """Upload until the queue is empty. A directory that fails stays in it."""
        assert self._store
        while self._waiting:
            directory = next(iter(self._waiting.values()))
            began = time.monotonic()
            try:
                await asyncio.to_thread(
                    self._store.copy, directory.path, self._below(directory), directory.files, directory.last
                )
            except FileNotFoundError as error:
                if directory.path.is_dir():
                    raise OSError(f"{directory.path}: {error}") from error
                log.warning("%s was deleted before it was copied: keepLast is too small for the store", directory.path)
            except Stopped:
                raise
            except Exception as error:
                log.warning("%s is not copied to %s: %s", directory.path, self._address, error)
                raise
            else:
                log.info("%s is in %s", directory.path, self._address)
                if directory.step is not None:
                    self._copied(directory.step, time.monotonic() - began)
            if self._waiting.get(directory.path) is directory:
                del self._waiting[directory.path]
