"""Where a service keeps what on the volume, and what of it can go.

Journals, and all that is made of them, name directories by their paths below the service's own: it may lie elsewhere the next time.
"""

import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.gateway.journal import JournalDamaged, sync_directory

STATES, SNAPSHOTS, CHECKPOINTS = "states", "snapshots", "checkpoints"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceFiles:
    """Of one service."""

    root: Path
    life: str
    """Of the gateway's process: its journals have a directory of their own."""

    @property
    def names(self) -> Path:
        """The journal of sessions, and of what has a name."""
        return self._journals / "service.log"

    @property
    def models(self) -> Path:
        """The directory of the models' journals."""
        return self._journals / "models"

    def journal(self, model: str) -> Path:
        return self.models / f"{plain(model)}.log"

    @property
    def _journals(self) -> Path:
        return self.root / f"journals-{self.life}"

    def take_journals(self, check: Callable[[], None]) -> None:
        """Rename the directory of the last life: whatever that renames or deletes by a path is not there any more. Raises OSError. `check`: raises if
        it is another one's turn."""
        found = list(self.root.glob("journals-*"))
        if len(found) > 1:
            raise JournalDamaged(
                f"{self.root} has several directories with journals: keep the one that counts, of {', '.join(map(str, found))}"
            )
        check()
        if found:
            found[0].rename(self._journals)
        else:
            self._journals.mkdir()
        sync_directory(self.root)

    def new(self, model: str, seq: int, kind: str) -> str:
        """A directory that nothing has been written to: after a crash a request may be executed again."""
        return f"{kind}/{plain(model)}/{seq}-{secrets.token_hex(4)}"

    def path(self, directory: str) -> str:
        """Where a directory is on this machine."""
        return str(self.root / directory)

    def remove(self, directory: str) -> None:
        """Delete a directory that nobody reads any more. Empty: none."""
        if directory:
            shutil.rmtree(self.root / directory, ignore_errors=True)

    def collect(self, used: Collection[str], check: Callable[[], None]) -> None:
        """Delete all directories of models but these: what a crash has left half-written, or without a name. Nobody may be writing meanwhile.
        `check` is called once it is clear what goes, and raises if the directory has another owner, whose ranks may have written some of it."""
        kinds = [self.root / kind for kind in (STATES, SNAPSHOTS, CHECKPOINTS)]
        unused = [path for kind in kinds for path in kind.glob("*/*") if str(path.relative_to(self.root)) not in used]
        check()
        for path in unused:
            log.info("%s: nothing refers to it", path)
            shutil.rmtree(path, ignore_errors=True)
        for model in (path for kind in kinds for path in kind.glob("*")):
            with contextlib.suppress(OSError):
                model.rmdir()  # if it is empty


def plain(model: str) -> str:
    """A model's name as the name of a file."""
    return model.replace(":", "-")
