"""`python -m rljob_trainer.launcher.fork_server LIFE MODULE`: a process that has imported what MODULE needs, and forks it for each attempt.

Importing torch and megatron takes ten seconds of a core. Here it happens while the pod waits for its attempt, once for all attempts of a
pod; forked ranks begin within a tenth of a second and share its memory. Nothing but imports ever happens in this process.

    LIFE    the module whose `run` the forked process calls with the request: launcher.agent for ranks, this one for the driver
    stdin   one ForkRequest a line; the fork server ends when it is closed
    stdout  {"ready": 1} when everything is imported; per request {"leader": pid} when it is forked, {"code": exit code} when it has ended
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
from typing import NoReturn, TextIO

from setproctitle import setproctitle

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
    """What the launcher asks a fork server for: JSON on one line of its standard input."""

    module: str
    """Its `main()` is the life of a process."""
    directory: str
    """The attempt's, where failures are written."""
    logs: list[str]
    """Output file of each process; their number is the number of processes."""
    environment: dict[str, str]
    """Set for them, in addition to what torchrun sets."""
    rendezvous: Rendezvous | None = None
    """Of ranks."""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def from_line(line: str) -> "ForkRequest":
        raw = json.loads(line)
        where = raw.pop("rendezvous")
        return ForkRequest(**raw, rendezvous=Rendezvous(**where) if where else None)


def serve(life: str, module: str) -> None:
    """Import, then fork once per request, until standard input is closed."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print is no answer
    gc.disable()  # imports make a million objects and no garbage: looking for some takes a tenth of the time
    run = importlib.import_module(life).run
    importlib.import_module(module).prepare()
    gc.freeze()  # and later collections, in forked processes, leave those objects and so their shared pages alone
    gc.enable()
    _answer(answers, {"ready": 1})
    while line := sys.stdin.readline():
        _fork(ForkRequest.from_line(line), run, answers)


def _fork(request: ForkRequest, run: Callable[[ForkRequest], int], answers: TextIO) -> None:
    """Fork, and wait for the end."""
    child = os.fork()
    if child == 0:
        answers.close()
        os._exit(run(request))
    _answer(answers, {"leader": child})
    _, status = os.waitpid(child, 0)
    _answer(answers, {"code": os.waitstatus_to_exitcode(status)})


def _answer(answers: TextIO, what: dict[str, int]) -> None:
    answers.write(json.dumps(what) + "\n")


def run(request: ForkRequest) -> NoReturn:
    """The driver's LIFE. Called in a process that leads a session of its own, so that the launcher can kill all of it."""
    lead_session(request)
    run_module(request.module, request.logs[0], f"python -m {request.module}")


def lead_session(request: ForkRequest) -> None:
    """In a forked process: a session of its own, no input, the request's environment."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request.environment)


def run_module(module: str, log: str, title: str) -> NoReturn:
    """Run `module.main()` with its output appended to `log`. SIGTERM writes there where every thread stands, and ends the process."""
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's handler is not ours
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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


if __name__ == "__main__":
    from rljob_trainer.launcher import fork_server  # not a second copy of this module under the name __main__

    fork_server.serve(sys.argv[1], sys.argv[2])
