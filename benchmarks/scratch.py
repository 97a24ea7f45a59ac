"""Where benchmarks write: each run in a directory of its own, and models, which take minutes and many GB, once for all runs on a machine.

Several runs may be under way at a time. Each run of a queue (benchmarks/queue.py) has a TMPDIR of its own, and BENCH_MODELS for what they share.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MODELS_VARIABLE = "BENCH_MODELS"
HELP = "a directory of this run alone, which stays; a temporary one otherwise"
SHARED = Path(os.environ.get(MODELS_VARIABLE) or tempfile.gettempdir())


@contextmanager
def directory(given: Path | None, name: str) -> Iterator[Path]:
    """`given`, which stays; None: a new one, which is deleted in the end. Nobody else may write to it."""
    if given:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix=f"rljob-bench-{name}-", ignore_cleanup_errors=True) as own:
        yield Path(own)


def once(target: Path, write: Callable[[Path], object]) -> Path:
    """A directory that `write` fills unless it is there. Who wants it meanwhile waits. It gets its name when it is complete, so that a run that is
    killed leaves none that others would read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            partial = target.with_name(f"{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            write(partial)
            partial.rename(target)
    return target


def link(shared: Path, own: Path, but: tuple[str, ...]) -> None:
    """The files of a shared directory in one's own, but for those whose names begin with one of `but`, which it has otherwise."""
    own.mkdir(parents=True, exist_ok=True)
    for file in shared.iterdir():
        if not file.name.startswith(but):
            (own / file.name).unlink(missing_ok=True)
            (own / file.name).symlink_to(file.resolve())
