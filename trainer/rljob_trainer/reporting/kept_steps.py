"""Files of single steps below the checkpoint path, of which the last KEPT_STEPS steps stay."""

import re
from pathlib import Path

KEPT_STEPS = 50
OURS = re.compile(r"step_([0-9]+)(\.jsonl|_[0-9]+\.png)")
"""Names of files that may be deleted."""


def delete_old(directory: Path, step: int) -> None:
    """Delete files of steps that lie KEPT_STEPS or more before `step`. Others, which somebody has put beside them, stay."""
    for file in directory.iterdir():
        ours = OURS.fullmatch(file.name)
        if ours and int(ours[1]) <= step - KEPT_STEPS:
            file.unlink(missing_ok=True)
