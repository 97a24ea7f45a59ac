"""Why a process ended an attempt, and where it says so: `error-<who>.json` in the attempt's directory, one file per process."""

import errno
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from rljob_api.protocol import Failure
from rljob_api.validation.result import Violation, lines
from rljob_trainer.textfile import replace

Kind = Literal["application", "configuration", "collective", "killed"]

KEPT_LINES = 20
LONGEST_TEXT = 4096
COLLECTIVE_ERRORS = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "PeerLost", "RolloutLost"})
"""Class names, so that processes without torch can tell."""
SEEN_OF_SERVERS = frozenset({"RolloutLost", "ReplicaRefusedError"})
"""Class names: what a rank sees when its colocated server has ended, or lives on without its engine. The launcher, which started it, says why."""
SERVER = "server"
"""As who the launcher says so."""
COLLECTIVE_TEXTS = ("gloo/transport", "Connection closed by peer", "ncclRemoteError", "ncclSystemError")
"""Gloo raises plain RuntimeErrors (torch 2.11); what its messages have in common."""
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
"""What network volumes and FUSE say while their server does not answer."""
WATCHDOG = "Process group watchdog thread terminated with exception: "
"""Before why NCCL's watchdog aborts a process (torch 2.11, ProcessGroupNCCL.cpp): mostly a peer that is gone or does not come."""


class ConfigurationError(ValueError):
    """The user has to fix it; a restart cannot help."""

    def __init__(self, field: str, value: object, rule: str, fix: str) -> None:
        super().__init__(f"{field} = {value}: {rule}; {fix}")
        self.field, self.value, self.rule, self.fix = field, str(value), rule, fix

    def __reduce__(self) -> tuple[type["ConfigurationError"], tuple[str, str, str, str]]:
        """So that it comes back from a worker process."""
        return ConfigurationError, (self.field, self.value, self.rule, self.fix)


def is_outage(error: BaseException) -> bool:
    """Whether a volume is away for now: nobody's mistake, a restart may find it again."""
    return isinstance(error, OSError) and error.errno in OUTAGES


class PeerLost(ConnectionError):
    """Another process of the attempt ended. It, or whoever watches it, says why; the one who raises this only follows."""


class RolloutLost(PeerLost):
    """A colocated server ended. The launcher, which started it, says why."""


def is_lost_peer(exception: str, message: str) -> bool:
    """Whether an error, by the name of its class, only says that a collective broke."""
    plain = exception == "RuntimeError" and any(text in message for text in COLLECTIVE_TEXTS)
    return plain or exception in COLLECTIVE_ERRORS


def write(directory: Path, who: int | str, error: BaseException) -> None:
    """Say why the process `who` (a global rank, or a name such as `driver`) fails."""
    record(directory, who, classify(error, who if isinstance(who, int) else None))


def record(directory: Path, who: int | str, failure: Failure) -> None:
    """Atomically."""
    replace(error_file(directory, who), failure.dump_json())


def error_file(directory: Path, who: int | str) -> Path:
    return directory / f"error-{who}.json"


def classify(error: BaseException, rank: int | None = None) -> Failure:
    """What an exception says. A broken collective at its origin makes it a symptom; one that is raised while another error is handled does not.

    A user's mistake is reported as its message, which has field, value, rule and fix: the traceback, which is in the log, is about our code.
    """
    chain = list(_chain(error))
    named = next((e for e in chain if isinstance(e, ConfigurationError)), None)
    kind: Kind = "configuration" if named else "collective" if _is_collective(chain[-1]) else "application"
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
    """Rules that a job breaks, at least one."""
    return Failure(
        kind="configuration",
        exception=ConfigurationError.__name__,
        message=lines(violations)[:LONGEST_TEXT],
        time=time.time(),
        field=violations[0].field,
    )


def ended(code: int, rank: int | None, log: str) -> Failure:
    """A process that ended with `code` (negative: of that signal) and without a word; `log` is the end of its output."""
    lines, now = last_lines(log), time.time()
    if code == -signal.SIGABRT and (reason := _lost_by_watchdog(log)):
        return Failure(kind="collective", rank=rank, exception="NCCL watchdog", message=reason, lines=lines, time=now)
    if code < 0:
        name = f"Signal {-code} ({signal.Signals(-code).name})"
        message = "the process was killed" + (", for example because memory ran out" if code == -signal.SIGKILL else "")
        return Failure(kind="killed", rank=rank, exception=name, message=message, lines=lines, time=now)
    message = next((line for line in reversed(lines) if line.strip()), "the process ended without a word")
    return Failure(kind="application", rank=rank, exception=f"exit code {code}", message=message, lines=lines, time=now)


def _lost_by_watchdog(log: str) -> str:
    """What the watchdog said of the peers; empty when it did not end the process, or for what the process's own GPU did."""
    said = log.rpartition(WATCHDOG)[2].partition("\n")[0] if WATCHDOG in log else ""
    return "" if "CUDA error" in said else said[:LONGEST_TEXT]


def last_lines(text: str) -> list[str]:
    return [line[:LONGEST_TEXT] for line in text.splitlines()[-KEPT_LINES:]]


def read(directory: Path) -> list[Failure]:
    """What the processes of an attempt said. What ranks saw of a server is left out where the launcher says why that ended."""
    found = [Failure.model_validate_json(file.read_text()) for file in sorted(directory.glob("error-*.json"))]
    explained = SEEN_OF_SERVERS if error_file(directory, SERVER).exists() else frozenset()
    return [failure for failure in found if failure.exception not in explained]


def first(failures: Iterable[Failure]) -> Failure | None:
    """The root cause: the earliest, but for those who only lost a peer; among those, the earliest when nobody names another cause."""
    return min(failures, key=lambda f: (f.kind == "collective", f.time), default=None)


def read_first(directory: Path) -> Failure | None:
    return first(read(directory))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those it came of."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _is_collective(error: BaseException) -> bool:
    return any(is_lost_peer(c.__name__, str(error)) for c in type(error).__mro__)
