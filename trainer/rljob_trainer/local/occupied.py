"""A directory belongs to one run until that has ended: a second one would write the same control files and fences, and each would end the other's
attempts.

A run holds a lock on a file in each of its directories (flock). The programs that it starts do not have the lock, and the kernel takes it back when
the run dies, however that happens: nothing has to be cleaned up. The file stays, and says who had the lock last. On a file system without locks a run
warns and begins.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rljob_api.text import one_line
from rljob_trainer.failure import ConfigurationError

LOCK = "run.lock"
CHECKPOINTS, WORK = "spec.checkpoint.path", "--work"
OTHERWISE = {
    CHECKPOINTS: "name another spec.checkpoint.path",
    WORK: "leave out --work, which makes a new temporary directory",
}
"""What helps while the other run lives, by what names the directory."""


@contextmanager
def occupying(job: str, field: str, directory: Path) -> Iterator[None]:
    """Hold a directory that `field` names. Raises ConfigurationError when a living run has it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(field, directory, f"cannot be made: {error.strerror}", OTHERWISE[field]) from error
    with ExitStack() as held:
        try:
            lock = _opened(directory / LOCK)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _refusal(field, directory, lock) from error
        except OSError as error:
            print(f"{job}: warning: no lock on {directory} ({error.strerror}): nothing keeps another run out of it")
        else:
            _sign(lock, job)
        yield


def _opened(file: Path) -> int:
    """Not inherited by programs that this process starts. A file of another user may be one that can only be read: that suffices for a lock."""
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(file, os.O_RDONLY)


def _sign(lock: int, job: str) -> None:
    """For the message to others; the lock holds without it, on a full volume, for example."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = json.dumps({"job": job, "pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode()
    with suppress(OSError):
        os.truncate(lock, os.pwrite(lock, text, 0))


def _refusal(field: str, directory: Path, lock: int) -> ConfigurationError:
    try:
        holder = json.loads(os.pread(lock, 4096, 0))
        known = isinstance(holder, dict) and _may_live(holder)
    except (OSError, ValueError):
        known = False
    by = one_line("of job {job}, process {pid} on {host} since {since},".format_map(holder)) if known else "of a job"
    rule = f"is where a run {by} writes, which has not ended; a second one would cut it off"
    return ConfigurationError(field, directory, rule, f"wait for its end, stop it, or {OTHERWISE[field]}")


def _may_live(holder: dict[str, Any]) -> bool:
    """False: the file is not signed by who has the lock, but by an earlier run."""
    if not {"job", "pid", "host", "since"} <= holder.keys():
        return False
    return holder["host"] != socket.gethostname() or Path(f"/proc/{holder['pid']}").exists()
