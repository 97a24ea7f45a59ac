"""The files of a snapshot of a whole model, before anything of it is sent: what it says of itself, or why servers cannot have it."""

import errno
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from rljob_trainer.model_files import Damaged, header, weight_files
from rljob_trainer.wire.collective import Ranks
from rljob_trainer.wire.rollout_server import POLICY
from rljob_trainer.wire.service import RefusedWork, TemporaryFailure

LASTING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that are of the files themselves. Others are the volume's, or the machine's, and may pass."""


def policy_of(directory: Path, ranks: Ranks) -> dict[str, Any]:
    """What a snapshot says of itself, read by rank 0, on all ranks; of the base model nothing is known: servers have read it from the same files.
    Collective. Raises RefusedWork when it cannot be sent, TemporaryFailure when it cannot be sent now."""
    said, failed, passing = ranks.broadcast(_attempt(directory) if ranks.is_first else None)
    if passing:
        raise TemporaryFailure(failed)
    if failed:
        raise RefusedWork(failed)
    return dict(said)


def _attempt(directory: Path) -> tuple[dict[str, Any], str, bool]:
    """What it says, or why that cannot be read, and whether this may pass."""
    try:
        return _policy(directory), "", False
    except RefusedWork as error:
        return {}, str(error), False
    except (SafetensorError, Damaged, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in LASTING:
            return {}, f"the snapshot {directory} cannot be read now: {error}", True
        return {}, f"the snapshot {directory} is damaged: {error}. Save it again", False


def _policy(directory: Path) -> dict[str, Any]:
    """Raises RefusedWork, SafetensorError, Damaged, OSError and ValueError."""
    if not (directory / "config.json").is_file():
        raise RefusedWork(f"{directory} holds no model: it was deleted")
    _require_whole(directory)
    file = directory / POLICY
    said = json.loads(file.read_text()) if file.is_file() else {}
    if not isinstance(said, dict):
        raise Damaged(file, f"holds {type(said).__name__} where an object belongs")
    return said


def _require_whole(directory: Path) -> None:
    """Reads headers, which have to fit the lengths of their files. Raises SafetensorError, Damaged and OSError."""
    for file in weight_files(directory):
        header(file)  # before the library, which makes a file that is not there of whatever the system says
        with safe_open(file, "pt"):
            pass
