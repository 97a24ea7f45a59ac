"""Finds in the log of a vLLM server why it ended. Pure.

Every process of vLLM 0.32 prefixes what it logs with its name and pid (vllm/logger.py, _FORMAT). When a worker fails, so does the
engine, and then the API server, each with a traceback that refers to the one before. The cause is in the traceback of the innermost process.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rljob_trainer.failure import is_lost_peer
from rljob_trainer.wire.weights.protocol import APPLYING_FAILED

LINE = re.compile(r"(?:\((?P<process>\S+ pid=\d+)\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\] ?)?(?P<text>.*)")
FATAL = re.compile(
    rf"failed to start|fatal error|WorkerProc (failed|hit an exception)|^Process \S+:$|{re.escape(APPLYING_FAILED)}"
)
"""Precedes the traceback of an error that ends a process, but not that of one that it handles."""
CHAIN = re.compile(r"(During handling of|The above exception was)")
"""Separates the tracebacks of chained exceptions."""
EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?")
SYMPTOMS = ("EngineDeadError", "Engine core initialization failed")
"""Errors of the API server that are consequences of a failed engine."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """The exception at the end of a traceback, or of a chain of tracebacks."""

    exception: str
    """Name of the class, without its module."""
    message: str
    """Its first line."""
    line: int
    """Number of the line in the log."""
    fatal: bool
    """The process logged that this error ends it."""


def engine_error(log: str) -> LoggedError | None:
    """The error that ended the engine, or made the API server end it. None when neither logged one, because the engine was killed."""
    processes = _read(log)
    ended = _fatal(p for p in processes if not p.name.startswith("Worker"))
    return ended and (_fatal(p for p in processes if p.name.startswith("Worker")) or ended)


def server_error(log: str) -> LoggedError | None:
    """The error that ended the server: that of its engine, or its own."""
    own = [e for p in _read(log) if not p.name.startswith(("EngineCore", "Worker")) for e in p.errors]
    return engine_error(log) or next((e for e in reversed(own) if not _is_symptom(e)), None)


def _fatal(processes: Iterable["_Process"]) -> LoggedError | None:
    """The first fatal error; of several workers, preferably one that did not merely lose its peers."""
    found = [next((e for e in p.errors if e.fatal), None) for p in processes]
    return min(filter(None, found), key=lambda e: (is_lost_peer(e.exception, e.message), e.line), default=None)


def _is_symptom(error: LoggedError) -> bool:
    return any(text in f"{error.exception}: {error.message}" for text in SYMPTOMS)


@dataclass(slots=True)
class _Process:
    """Parses the lines of one process, in order."""

    name: str
    errors: list[LoggedError] = field(default_factory=list)
    traced: bool = False
    """The previous line belongs to a traceback."""
    fatal: bool = False
    chained: bool = False

    def read(self, number: int, text: str) -> None:
        if text.startswith("Traceback (most recent call last)"):
            self.traced = True
        elif not self.traced:
            self.fatal |= bool(FATAL.search(text))
            self.chained |= bool(CHAIN.match(text))
        elif text and not text[0].isspace():
            self.traced = False
            if match := EXCEPTION.fullmatch(text):
                self._raised(number, match)

    def _raised(self, number: int, match: re.Match[str]) -> None:
        fatal = self.fatal
        if self.chained and self.errors:
            fatal |= self.errors.pop().fatal
        name = match["name"].rpartition(".")[2]
        self.errors.append(LoggedError(name, match["message"] or "", number, fatal))
        self.fatal = self.chained = False


def _read(log: str) -> list[_Process]:
    processes: dict[str, _Process] = {}
    for number, name, text in _lines(log):
        processes.setdefault(name, _Process(name)).read(number, text)
    return list(processes.values())


def _lines(log: str) -> Iterator[tuple[int, str, str]]:
    """Yields number, process (empty if the line names none) and text of each line. Lines of several processes may alternate."""
    for number, line in enumerate(log.splitlines()):
        if match := LINE.fullmatch(line):
            yield number, match["process"] or "", match["text"]
