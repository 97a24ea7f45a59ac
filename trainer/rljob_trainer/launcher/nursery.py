"""`python -m rljob_trainer.launcher.nursery LIFE MODULE`: a process that has imported what MODULE needs, and forks it for each attempt.

Importing torch and megatron takes ten seconds of a core. Here it happens while the pod waits for its attempt, once for all attempts of a
pod; forked ranks begin within a tenth of a second and share its memory. Nothing but imports ever happens in this process.

    LIFE    what the forked process does with the order: rljob_trainer.launcher.agent for ranks, rljob_trainer.launcher.single for the driver
    stdin   one Order a line; the end of it ends the nursery
    stdout  {"ready": 1} when everything is imported; per order {"leader": pid} when it is forked, {"code": exit code} when it has ended
"""

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import TextIO

from rljob_trainer.launcher.order import Order
from rljob_trainer.launcher.processes import die_with_parent


def main(life: str, module: str) -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what imports print is no answer
    gc.disable()  # imports make a million objects and no garbage: looking for some takes a tenth of the time
    run = importlib.import_module(life).run
    importlib.import_module(module).prepare()
    gc.freeze()  # and later collections, in forked processes, leave those objects and so their shared pages alone
    gc.enable()
    _say(answers, {"ready": 1})
    while line := sys.stdin.readline():
        _raise(Order.from_line(line), run, answers)


def _raise(order: Order, run: Callable[[Order], int], answers: TextIO) -> None:
    """From birth to death."""
    child = os.fork()
    if child == 0:
        answers.close()
        os._exit(run(order))
    _say(answers, {"leader": child})
    _, status = os.waitpid(child, 0)
    _say(answers, {"code": os.waitstatus_to_exitcode(status)})


def _say(answers: TextIO, what: dict[str, int]) -> None:
    answers.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
