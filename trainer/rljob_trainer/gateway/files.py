"""Where a service keeps what on the volume, and what of it can go.

Journals, and all that is made of them, name directories by their paths below the service's own: it may lie elsewhere the next time.
"""

import logging
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

STATES, SNAPSHOTS, CHECKPOINTS = "states", "snapshots", "checkpoints"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceFiles:
    """Of one service."""

    root: Path

    @property
    def journals(self) -> Path:
        return self.root / "models"

    def journal(self, model: str) -> Path:
        return self.journals / f"{plain(model)}.log"

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

    def collect(self, used: Collection[str]) -> None:
        """Delete all directories of models but these: what a crash has left half-written, or without a name. Nobody may be writing meanwhile."""
        for kind in (STATES, SNAPSHOTS, CHECKPOINTS):
            for path in (self.root / kind).glob("*/*"):
                if (directory := str(path.relative_to(self.root))) not in used:
                    log.info("%s: nothing refers to it", path)
                    self.remove(directory)
            for empty in (path for path in (self.root / kind).glob("*") if not any(path.glob("*"))):
                shutil.rmtree(empty, ignore_errors=True)


def plain(model: str) -> str:
    """A model's name as the name of a file."""
    return model.replace(":", "-")
