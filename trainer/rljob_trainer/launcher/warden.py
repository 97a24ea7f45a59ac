"""A process between torchrun's agent and a rank. It waits for that rank alone, so it knows how the rank ended, whatever it was.

The agent itself looks ten times a second, takes the first dead rank that it finds for the failed one and ends the others: a rank that was
killed and a rank that lost its peer by that look the same to it.
"""

import os
import signal
from pathlib import Path

from rljob_trainer import failure
from rljob_trainer.launcher import program
from rljob_trainer.launcher.logs import tail
from rljob_trainer.launcher.order import Order
from rljob_trainer.launcher.processes import die_with_parent

WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def guard(order: Order) -> None:
    """Called by torchrun in the process of a local rank. Returns when the rank ended with 0, else ends the process with its word recorded."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    rank, log = int(os.environ["RANK"]), order.logs[int(os.environ["LOCAL_RANK"])]
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        program.live(order.module, log, f"python -m {order.module} {rank}")
    code, told = _wait(child)
    if code == 0:
        return
    directory = Path(order.directory)
    if not told and not failure.error_file(directory, rank).exists():
        failure.record(directory, rank, failure.ended(code, rank, tail(Path(log))))
    os._exit(code if code > 0 else 1)


def _wait(child: int) -> tuple[int, bool]:
    """How the rank ended (negative: of that signal), and whether it was told to."""
    told = False
    while True:
        number = signal.sigwait(WATCHED)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status), told
        if number == signal.SIGTERM:
            told = True
            os.kill(child, signal.SIGTERM)
