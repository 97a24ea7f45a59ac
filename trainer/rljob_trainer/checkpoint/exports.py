"""The Hugging Face directories that a run has exported, and which of them are kept."""

import logging
from pathlib import Path

from rljob_api import names
from rljob_trainer.checkpoint.files import remove

log = logging.getLogger(__name__)


def complete(root: Path) -> dict[int, Path]:
    """[step] -> directory of each complete export below `root`, oldest first. One that is being written has another name."""
    found = ((d.name.removeprefix("step_"), d) for d in names.exports_dir(root).glob("step_*"))
    return dict(sorted((int(step), d) for step, d in found if step.isdecimal()))


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
