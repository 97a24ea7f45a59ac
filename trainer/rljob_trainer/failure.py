"""Failures of processes: classification, and the files `error-<who>.json` in the attempt's directory, one per process."""

import errno
import os
import re
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rljob_api import names
from rljob_api.protocol import Failure
from rljob_api.rules.engine import Violation, lines
from rljob_trainer.textfile import replace

FailureKind = Literal["application", "configuration", "collective", "killed", "full"]

KEPT_LINES = 20
LONGEST_TEXT = 4096
COLLECTIVE_ERRORS = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "PeerLost", "RolloutLost"})
"""Class names of errors that only say that a peer was lost. Names, so that processes without torch can use them."""
SEEN_OF_SERVERS = frozenset({"RolloutLost", "ReplicaRefusedError"})
"""Class names of errors that a rank sees when its colocated server has ended, or is alive without its engine. The launcher reports the cause."""
OUT_OF_MEMORY = "OutOfMemory"
FORK_SERVER_LOST = "ForkServerLost"
SERVER_LOST = "ServerLost"
KILLED_SILENTLY = frozenset({"Signal 9 (SIGKILL)", FORK_SERVER_LOST, SERVER_LOST})
"""`Failure.exception` of processes that ended without a word, as those do that the kernel kills when memory runs out."""
SERVER = "server"
"""The name under which the launcher records the failure of a colocated server."""
COLLECTIVE_TEXTS = ("gloo/transport", "Connection closed by peer", "ncclRemoteError", "ncclSystemError")
"""Texts in the messages of lost peers: Gloo raises plain RuntimeErrors (torch 2.13)."""
OUTAGES = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EREMOTEIO,
        errno.EBUSY,
    }
)
"""Errors of network volumes and FUSE while their server does not answer."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a volume that has no space left, or none for this user."""
OWN_DIRECTORIES = ("/dev/shm", "/tmp", names.WORK_DIR, "</torch_")
"""Directories of the pod itself, and torch's name for its files in shared memory. They are empty in a new pod, and fill up again."""
WATCHDOG = "Process group watchdog thread terminated with exception: "
"""Logged before the reason why NCCL's watchdog aborts a process (torch 2.13, ProcessGroupNCCL.cpp), usually a peer that is gone or late."""

ABORTING = re.compile(rf"(?:{WATCHDOG}|^ *what\(\): *)(\S.*)", re.MULTILINE)
"""NCCL's watchdog, and C++'s `terminate`. Dozens of stack frames follow, behind which nobody looks for it."""


class RowProblem(NamedTuple):
    """Why no reward can score a row of the data."""

    rule: str
    fix: str
    needs_answer: bool = False
    """It has an answer that cannot be compared with, or none."""


class ConfigurationError(ValueError):
    """A mistake that the user has to fix; a restart cannot help."""

    def __init__(self, field: str, value: object, rule: str, fix: str) -> None:
        super().__init__(f"{field} = {value}: {rule}; {fix}")
        self.field, self.value, self.rule, self.fix = field, str(value), rule, fix

    def __reduce__(self) -> tuple[type["ConfigurationError"], tuple[str, str, str, str]]:
        """Makes it picklable, to be raised from a worker process."""
        return ConfigurationError, (self.field, self.value, self.rule, self.fix)


def is_outage(error: BaseException) -> bool:
    """Whether a volume is temporarily unavailable, so that a restart may help."""
    return isinstance(error, OSError) and error.errno in OUTAGES


def is_full(error: BaseException) -> bool:
    """Whether a volume has no space left, so that a restart helps once somebody has made room. Libraries in other languages (safetensors) have no
    errno, only its text."""
    text = str(error)
    full = getattr(error, "errno", None) in FULL or any(os.strerror(number) in text for number in FULL)
    return full and not any(place in text for place in OWN_DIRECTORIES)


class PeerLost(ConnectionError):
    """Another process of the attempt ended. This is a symptom: the cause is reported by that process, or by the one that watches it."""


class RolloutLost(PeerLost):
    """A colocated server ended. The launcher reports the cause."""


def is_lost_peer(exception: str, message: str) -> bool:
    """Whether an error, given by class name and message, only says that a peer was lost."""
    plain = exception == "RuntimeError" and any(text in message for text in COLLECTIVE_TEXTS)
    return plain or exception in COLLECTIVE_ERRORS


def write(directory: Path, who: int | str, error: BaseException) -> None:
    """Record why the process `who` (a global rank, or a name such as `driver`) fails."""
    record(directory, who, classify(error, who if isinstance(who, int) else None))


def record(directory: Path, who: int | str, failure: Failure) -> None:
    """Write a failure, atomically."""
    replace(error_file(directory, who), failure.dump_json())


def error_file(directory: Path, who: int | str) -> Path:
    return directory / f"error-{who}.json"


def classify(error: BaseException, rank: int | None = None) -> Failure:
    """The failure that an exception reports. It counts as collective, a symptom, if the exception at the start of its chain is a lost peer; not if
    a peer was lost while another error was handled.

    A user's mistake is reported without traceback: the message has field, value, rule and fix, and the traceback would be about our code.
    """
    chain = list(_chain(error))
    named = next((e for e in chain if isinstance(e, ConfigurationError)), None)
    kind: FailureKind = "configuration" if named else "collective" if _is_collective(chain[-1]) else "application"
    if kind == "application" and any(is_full(e) for e in chain):
        kind = "full"
    shown = named or next((e for e in chain if not _is_collective(e)), error)
    return Failure(
        kind=kind,
        rank=rank,
        exception=type(shown).__name__,
        message=str(shown)[:LONGEST_TEXT],
        lines=[] if named else last_lines("".join(traceback.format_exception(shown))),
        time=time.time(),
        field=named.field if named else "",
    )


def misconfigured(violations: Sequence[Violation]) -> Failure:
    """The failure of a job that breaks at least one rule."""
    return Failure(
        kind="configuration",
        exception=ConfigurationError.__name__,
        message=lines(violations)[:LONGEST_TEXT],
        time=time.time(),
        field=violations[0].field,
    )


def ended(code: int, rank: int | None, log: str) -> Failure:
    """The failure of a process that ended with `code` (negative: a signal) without recording one. `log`: the end of its output."""
    lines, now = last_lines(log), time.time()
    reason = _lost_by_watchdog(log) if code == -signal.SIGABRT else ""
    if reason:
        return Failure(kind="collective", rank=rank, exception="NCCL watchdog", message=reason, lines=lines, time=now)
    if code < 0:
        name = f"Signal {-code} ({signal.Signals(-code).name})"
        message = "the process was killed" + (", for example because memory ran out" if code == -signal.SIGKILL else "")
        said = _said_when_aborting(log) if code == -signal.SIGABRT else None
        if said:
            message, lines = said[1][:LONGEST_TEXT], last_lines(log[: said.end()])
        return Failure(kind="killed", rank=rank, exception=name, message=message, lines=lines, time=now)
    message = next((line for line in reversed(lines) if line.strip()), "the process ended without a word")
    return Failure(kind="application", rank=rank, exception=f"exit code {code}", message=message, lines=lines, time=now)


def with_memory(failure: Failure, kills: int, limit: int | None) -> Failure:
    """The failure of a killed process, called by its name when memory was the cause.

    Args:
        kills: processes of this container that the kernel has killed meanwhile because memory ran out
        limit: bytes that the container may use; None: as many as the node has
    """
    if failure.kind != "killed" or not kills or failure.exception not in KILLED_SILENTLY:
        return failure
    whose = (
        f"the container's limit is {limit / 2**30:.1f} GiB"
        if limit
        else "the container has no limit, the node's memory is used up"
    )
    message = f"memory ran out (OOM, exit code 137): {whose}; raise the memory in template.resources, or use less"
    return failure.model_copy(update={"exception": OUT_OF_MEMORY, "message": message})


def _lost_by_watchdog(log: str) -> str:
    """The watchdog's message about a lost peer; empty when it did not end the process, or the error is the process's own (CUDA)."""
    said = log.rpartition(WATCHDOG)[2].partition("\n")[0] if WATCHDOG in log else ""
    return "" if "CUDA error" in said else said[:LONGEST_TEXT]


def _said_when_aborting(log: str) -> re.Match[str] | None:
    """The last reason that native code gave before it called abort(): group 1."""
    return next(reversed([*ABORTING.finditer(log)]), None)


def last_lines(text: str) -> list[str]:
    return [line[:LONGEST_TEXT] for line in text.splitlines()[-KEPT_LINES:]]


def read(directory: Path) -> list[Failure]:
    """All recorded failures of an attempt, without what ranks saw of a colocated server if the launcher has recorded why that ended."""
    failures = [Failure.model_validate_json(file.read_text()) for file in sorted(directory.glob("error-*.json"))]
    explained = SEEN_OF_SERVERS if error_file(directory, SERVER).exists() else frozenset()
    return [failure for failure in failures if failure.exception not in explained]


def first(failures: Iterable[Failure]) -> Failure | None:
    """The root cause: the earliest failure that is not collective, or else the earliest one."""
    return min(failures, key=lambda f: (f.kind == "collective", f.time), default=None)


def read_first(directory: Path) -> Failure | None:
    return first(read(directory))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the exception, then the causes that led to it."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _is_collective(error: BaseException) -> bool:
    return any(is_lost_peer(c.__name__, str(error)) for c in type(error).__mro__)
