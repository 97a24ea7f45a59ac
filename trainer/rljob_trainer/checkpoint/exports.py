"""Which Hugging Face directories a run has, and which of them are kept."""

import logging
from pathlib import Path

from rljob_api import names
from rljob_trainer.checkpoint.files import remove

log = logging.getLogger(__name__)


def complete(root: Path) -> dict[int, Path]:
    """Exports below `root` by their steps, oldest first; what is being written has another name."""
    found = ((d.name.removeprefix("step_"), d) for d in names.exports_dir(root).glob("step_*"))
    return dict(sorted((int(step), d) for step, d in found if step.isdecimal()))


def superseded(root: Path, every: int, kept: int) -> list[Path]:
    """Exports of every so many steps below `root` but the `kept` newest. Exports of other steps are somebody's own."""
    periodic = [d for step, d in complete(root).items() if step % every == 0]
    return periodic[:-kept]


def prune(root: Path, every: int, kept: int) -> None:
    """Delete those. What cannot be deleted stays until the next export, and does not end the attempt."""
    for directory in superseded(root, every, kept):
        try:
            remove(directory)
        except OSError as error:
            log.warning("%s is not deleted: %s", directory, error)
