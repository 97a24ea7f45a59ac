"""Who may write to the checkpoint directory: the attempt with the newest fence, and nobody else.

A fence is made at the start of an attempt. It lists the checkpoints that the attempt inherits, and later also those that it makes, so that the next
attempt knows what should be there. An attempt that was cut off from the cluster finds a newer fence before it commits or prunes. If it commits just
after that check, its checkpoint is under an old fence and no newer fence lists it, so it is ignored.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rljob_api import names
from rljob_trainer.checkpoint.files import make_directory, write_json


class FencedOut(RuntimeError):
    """A newer attempt owns the job. This one must end and touch nothing."""


@dataclass(frozen=True, slots=True)
class Fence:
    """One attempt's claim on the directory."""

    seq: int
    """Grows with every claim on this directory, whichever job makes it."""
    attempt: int
    job_uid: str
    lineage: tuple[tuple[int, int], ...]
    """(step, seq) of the complete checkpoints that the attempt inherits or has made, by step."""
    time: float


def fences(root: Path) -> list[Fence]:
    """All fences of the directory, oldest first."""
    directory = names.fence_dir(root)
    read = (_read(f) for f in directory.glob("*.json")) if directory.is_dir() else ()
    return sorted((f for f in read if f), key=lambda f: f.seq)


def newest(root: Path) -> Fence | None:
    return max(fences(root), key=lambda f: f.seq, default=None)


def claim(root: Path, job_uid: str, attempt: int, lineage: Sequence[tuple[int, int]]) -> Fence:
    """Make the newest fence. Its number is reserved by an exclusive create, then its content is written atomically."""
    directory = names.fence_dir(root)
    make_directory(directory)
    fence = Fence(_take_number(directory), attempt, job_uid, tuple(lineage), time.time())
    write_json(directory / f"{fence.seq}.json", asdict(fence))
    _prune(root, fence.seq)
    return fence


def extend(root: Path, fence: Fence, lineage: Sequence[tuple[int, int]]) -> Fence:
    """List in the attempt's own fence what it has made."""
    fence = replace(fence, lineage=tuple(lineage))
    write_json(names.fence_dir(root) / f"{fence.seq}.json", asdict(fence))
    return fence


def _prune(root: Path, seq: int) -> None:
    """Delete claims older than `seq`, except the newest of each job, which tells that the job was here. Validity needs only the newest of all."""
    last = {f.job_uid: f.seq for f in fences(root)}
    for file in names.fence_dir(root).iterdir():
        if file.stem.isdigit() and int(file.stem) < seq and int(file.stem) not in last.values():
            file.unlink(missing_ok=True)


def _take_number(directory: Path) -> int:
    """Reserve the next number. One whose owner died before it wrote the content leaves a harmless gap."""
    number = max((int(f.stem) for f in directory.iterdir() if f.stem.isdigit()), default=0)
    while True:
        number += 1
        try:
            os.close(os.open(directory / f"{number}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        return number


def _read(file: Path) -> Fence | None:
    """None when a newer claim has just deleted it."""
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return Fence(**content | {"lineage": tuple((s, q) for s, q in content["lineage"])})
