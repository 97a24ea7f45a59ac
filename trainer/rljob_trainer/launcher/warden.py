"""A process between torchrun's agent and a rank. It waits for that rank alone, so it knows how the rank ended, whatever it was.

The agent itself looks ten times a second, takes the first dead rank that it finds for the failed one and ends the others: a rank that was
killed and a rank that lost its peer by that look the same to it.
"""

import faulthandler
import importlib
import os
import signal
import traceback
from pathlib import Path
from typing import NoReturn

from setproctitle import setproctitle

from rljob_trainer import failure
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
        _live(order, rank, log)
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


def _live(order: Order, rank: int, log: str) -> NoReturn:
    """The rank. SIGTERM writes where every thread stands into its log, and ends it."""
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's handler is not ours
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        setproctitle(f"python -m {order.module} {rank}")
        importlib.import_module(order.module).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
