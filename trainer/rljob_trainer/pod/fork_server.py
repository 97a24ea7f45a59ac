"""`python -m rljob_trainer.pod.fork_server RUNNER MODULE`: a process that has imported what MODULE needs, and forks itself for each attempt.

Importing torch and megatron takes ten seconds of a core. Here it happens once per pod, while the pod waits for its attempt; forked ranks start within
a tenth of a second and share the memory of the imports. This process does nothing but import and fork.

    RUNNER  the module whose `run` the forked process calls with the request: pod.agent for ranks, this one for the driver
    stdin   one ForkRequest per line; the fork server ends when stdin is closed
    stdout  {"ready": 1} when everything is imported; per request {"leader": pid} once forked, {"code": exit code} once it has ended; in place of
            the first two {"failed": Failure}, before this process ends
"""

import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from setproctitle import setproctitle

from rljob_api import names
from rljob_trainer.failure import classify, write
from rljob_trainer.processes import die_with_parent


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of all nodes meet."""

    run_id: str
    nodes: int
    node_rank: int
    address: str
    port: int
    timeout_seconds: int
    """How long to wait for the other nodes."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A request to a fork server: JSON on one line of its standard input."""

    module: str
    """Module whose `main()` each process runs."""
    directory: str
    """The attempt's directory, into which failures are written."""
    logs: list[str]
    """Output file of each process; as many as there are processes."""
    environment: dict[str, str]
    """Additional environment variables of the processes."""
    rendezvous: Rendezvous | None = None
    """For ranks only."""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: str) -> "ForkRequest":
        raw = json.loads(line)
        where = raw.pop("rendezvous")
        return ForkRequest(**raw, rendezvous=Rendezvous(**where) if where else None)


def serve(runner: str, module: str) -> None:
    """Import, then fork once per request until standard input is closed."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print must not end up among the answers
    gc.disable()  # imports make a million objects and no garbage; collecting would add a tenth to their time
    try:
        run = importlib.import_module(runner).run
        importlib.import_module(module).prepare()
    except BaseException as error:
        _give_up(answers, error)
    gc.freeze()  # collections in forked processes then do not touch, and so do not copy, the shared pages of these objects
    gc.enable()
    _answer(answers, {"ready": 1})
    while line := sys.stdin.readline():
        _fork(ForkRequest.from_line(line), run, answers)


def _fork(request: ForkRequest, run: Callable[[ForkRequest], int], answers: TextIO) -> None:
    """Fork a process for the request, and wait for it."""
    try:
        child = os.fork()
    except OSError as error:
        _give_up(answers, error)
    if child == 0:
        answers.close()
        os._exit(run(request))
    _answer(answers, {"leader": child})
    _, status = os.waitpid(child, 0)
    _answer(answers, {"code": os.waitstatus_to_exitcode(status)})


def _give_up(answers: TextIO, error: BaseException) -> NoReturn:
    _answer(answers, {"failed": classify(error).model_dump(mode="json", exclude_none=True)})
    traceback.print_exception(error)
    os._exit(1)  # and wait for no thread that half of the imports have started


def _answer(answers: TextIO, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")


def run(request: ForkRequest) -> NoReturn:
    """The runner of the driver. The forked process becomes a session leader, so that the launcher can kill the whole session."""
    lead_session(request)
    run_module(request.module, request.logs[0], f"python -m {request.module}")


def lead_session(request: ForkRequest) -> None:
    """In a forked process: start a session, detach standard input, and set the request's environment."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.environment)


def run_module(module: str, log: str, title: str) -> NoReturn:
    """Run `module.main()` with its output appended to `log`. On SIGTERM the stack traces of all threads are written there, and the process ends."""
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's handler is not ours
        output = _opened(log)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        setproctitle(title)
        importlib.import_module(module).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _opened(log: str) -> int:
    """Raises OSError, which nobody finds in a log: recorded as the failure of the process that would have written it."""
    try:
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        write(Path(os.environ[names.ENV_ATTEMPT_DIR]), Path(log).stem, error)
        raise


if __name__ == "__main__":
    from rljob_trainer.pod import fork_server  # not a second copy of this module under the name __main__

    fork_server.serve(sys.argv[1], sys.argv[2])
