"""Runs a vLLM server as a child process: copies its output, finds in it why the server ended, checks its health, and ends it with all of its
descendants.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rljob_api import names
from rljob_api.protocol import Failure
from rljob_trainer.failure import LONGEST_TEXT, SERVER_LOST, FailureKind, is_lost_peer, last_lines, with_memory
from rljob_trainer.machine import memory_limit, oom_kills
from rljob_trainer.output import ChildOutput, pipe
from rljob_trainer.patches import UNSUPPORTED_VERSION
from rljob_trainer.pod.health import HealthCheck, Lost
from rljob_trainer.pod.part import FollowerCheck, PodPart
from rljob_trainer.processes import ProcessTree
from rljob_trainer.wire.weights.protocol import APPLYING_FAILED, FOLLOWER_FAILED, FOLLOWS, PAUSING_FAILED

LINE = re.compile(r"(?:\((?P<process>\S+ pid=\d+)\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\] ?)?(?P<text>.*)")
FATAL = re.compile(
    r"failed to start|fatal error|WorkerProc (failed|hit an exception)|^Process \S+:$|"
    + "|".join(map(re.escape, (APPLYING_FAILED, PAUSING_FAILED, FOLLOWER_FAILED)))
)
"""Precedes the traceback of an error that ends a process, but not that of one that it handles."""
CHAIN = re.compile(r"(During handling of|The above exception was)")
"""Separates the tracebacks of chained exceptions."""
EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?")
SYMPTOMS = ("EngineDeadError", "Engine core initialization failed")
"""Errors of the API server that are consequences of a failed engine."""
SERVER = "rljob_trainer.server.server"
STOP_SECONDS = 20.0
"""Between SIGTERM and SIGKILL."""
LAST_WORDS_SECONDS = 2.0
"""Time for a server whose engine has ended to log why."""
LINES_AFTER = 4
"""Lines of output after an error that are reported with it: the rest of its message."""
USAGE_ERROR = 2
"""argparse's exit code."""


@dataclass(frozen=True, slots=True)
class LoggedError:
    """The exception at the end of a traceback, or of a chain of tracebacks."""

    exception: str
    """Name of the class, without its module."""
    message: str
    """Its first line, and the indented ones behind it: pydantic's first line only counts mistakes."""
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
    errors = [next((e for e in p.errors if e.fatal), None) for p in processes]
    return min(filter(None, errors), key=lambda e: (is_lost_peer(e.exception, e.message), e.line), default=None)


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
    unfinished: int = 0
    """So many lines may belong to the message of the last error."""

    def read(self, number: int, text: str) -> None:
        if text.startswith("Traceback (most recent call last)"):
            self.traced = True
        elif not self.traced and self.unfinished and text[:1].isspace():
            self._said_more(text.strip())
        elif not self.traced:
            self.unfinished = 0
            self.fatal |= bool(FATAL.search(text))
            self.chained |= bool(CHAIN.match(text))
        elif text and not text[0].isspace():
            self.traced = False
            match = EXCEPTION.fullmatch(text)
            if match:
                self._raised(number, match)

    def _said_more(self, text: str) -> None:
        last = self.errors[-1]
        self.errors[-1] = replace(last, message="; ".join(filter(None, (last.message, text))))
        self.unfinished -= 1

    def _raised(self, number: int, match: re.Match[str]) -> None:
        fatal = self.fatal
        if self.chained and self.errors:
            fatal |= self.errors.pop().fatal
        name = match["name"].rpartition(".")[2]
        self.errors.append(LoggedError(name, match["message"] or "", number, fatal))
        self.fatal, self.chained, self.unfinished = False, False, LINES_AFTER


def _read(log: str) -> list[_Process]:
    processes: dict[str, _Process] = {}
    for number, name, text in _lines(log):
        processes.setdefault(name, _Process(name)).read(number, text)
    return list(processes.values())


def _lines(log: str) -> Iterator[tuple[int, str, str]]:
    """Yields number, process (empty if the line names none) and text of each line. Lines of several processes may alternate."""
    for number, line in enumerate(log.splitlines()):
        match = LINE.fullmatch(line)
        if match:
            yield number, match["process"] or "", match["text"]


class ServerProcess:
    """A running server. Use `start`, then `end` or `stop`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        family: ProcessTree,
        output: asyncio.StreamReader,
        check: HealthCheck,
        section: str,
        part: PodPart | None,
    ) -> None:
        self._process, self._family, self._check = process, family, check
        self._section, self._part = section, part
        self._oom_kills = oom_kills()
        self.follows = asyncio.Event()
        """Set when the workers of a part that is not its server's head are up."""
        self._output = ChildOutput(output, sys.stdout.buffer, self._hear)

    @staticmethod
    async def start(
        arguments: Sequence[str], environment: Mapping[str, str], url: str, section: str, part: PodPart | None = None
    ) -> "ServerProcess":
        """Start a server, or a part of one, in a session and a family of its own, so that all of it can be killed.

        Args:
            arguments: of vLLM's server
            url: where it will answer
            section: section of the spec that describes it, for messages
            part: of a server of several pods, that this pod runs
        """
        command = (sys.executable, "-m", SERVER, *arguments)
        output, end = await pipe()
        family = ProcessTree()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=dict(environment) | family.environment, stdout=end, stderr=end, start_new_session=True
            )
        finally:
            os.close(end)
        family.lead(process.pid)
        check = (
            FollowerCheck(process.pid, part)
            if part and part.follows
            else HealthCheck(process.pid, url, environment[names.ENV_ROLLOUT_TOKEN], part is not None)
        )
        return ServerProcess(process, family, output, check, section, part)

    @property
    def pid(self) -> int:
        return self._process.pid

    def answered(self) -> None:
        """It is ready. From now on it counts as frozen when it does not answer."""
        self._check.answered()

    async def end(self) -> Failure:
        """Wait until the server ends, or kill it when it is dead, frozen or stuck. Returns why. Its session is killed in either case."""
        exited, lost = asyncio.create_task(self._process.wait()), asyncio.create_task(self._check.lost())
        try:
            await asyncio.wait({exited, lost}, return_when=asyncio.FIRST_COMPLETED)
            exited_first = exited.done()
            await asyncio.wait({exited}, timeout=LAST_WORDS_SECONDS)
            signalled = exited.done() and exited.result() < 0  # the signal ended its engine, too
            await self._kill()
            failure = self._exited(exited.result()) if exited_first or signalled else self._lost(lost.result())
            return with_memory(failure, oom_kills() - self._oom_kills, memory_limit())
        finally:
            exited.cancel()
            lost.cancel()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after STOP_SECONDS."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._process.wait()), STOP_SECONDS)
        await self._kill()

    async def _kill(self) -> None:
        """Kill the server's family, even if the server itself has ended."""
        await asyncio.to_thread(self._family.kill)
        await self._process.wait()
        await self._output.close()

    def _exited(self, code: int) -> Failure:
        """The failure of a server that has exited. `code`: negative for a signal. vLLM may exit with 0 when its engine has died."""
        if code == USAGE_ERROR:
            field = f"{self._section}.vllmArgs"
            return self._failure("configuration", "", f"vLLM refused its arguments: correct {field}", field=field)
        if code == UNSUPPORTED_VERSION:
            lines = last_lines(self._log)
            return self._failure("configuration", "", lines[-1] if lines else "", field="spec.image")
        if code < 0:
            return self._failure("killed", f"Signal {-code} ({signal.Signals(-code).name})", "the server ended")
        error = server_error(self._log)
        if error:
            return self._raised(error)
        return self._failure("application", f"exit code {code}", "the server ended")

    def _lost(self, lost: Lost) -> Failure:
        """The failure of a server that the health check has given up. A dead engine has logged why, unless it was killed."""
        error = engine_error(self._log) if lost.dead else None
        if error:
            return self._raised(error)
        return self._failure(
            "collective" if lost.elsewhere else "killed", SERVER_LOST, f"the server was killed: {lost.reason}"
        )

    def _raised(self, error: LoggedError) -> Failure:
        """The failure for a logged error, with the end of its traceback."""
        until = "\n".join(self._log.splitlines()[: error.line + 1 + LINES_AFTER])
        lost_peer = self._part is not None and is_lost_peer(error.exception, error.message)
        kind: FailureKind = "collective" if lost_peer else "application"
        return self._failure(kind, error.exception, error.message[:LONGEST_TEXT], log=until)

    def _failure(self, kind: FailureKind, exception: str, message: str, field: str = "", log: str = "") -> Failure:
        lines = last_lines(log or self._log)
        return Failure(kind=kind, exception=exception, message=message, field=field, lines=lines, time=time.time())

    @property
    def _log(self) -> str:
        return self._output.text

    def _hear(self, chunk: bytes) -> None:
        self._check.heard(chunk)
        if self._output.ends_with(FOLLOWS.encode(), len(chunk)):
            self.follows.set()
