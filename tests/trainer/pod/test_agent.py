"""What the monitor of a rank passes on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from rljob_trainer.pod import agent

PAUSE = 0.3
"""Seconds in which a process gets a signal that it should not."""


def torchrun(monitor: int) -> None:
    """Its parent, to it alone."""
    os.kill(monitor, signal.SIGTERM)


def launcher(monitor: int) -> None:
    """Another process, to the whole group."""
    subprocess.run(["kill", "-TERM", "--", f"-{monitor}"], check=True)


def counting(ready: int, ended: int) -> NoReturn:
    """A rank that says so when it gets a SIGTERM, and ends, when `ended` is closed, with their number."""
    found: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: found.append(os.write(ready, b"!")))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, agent.WATCHED)
    os.write(ready, b"!")
    os.read(ended, 1)
    os._exit(len(found))


def sigterms(*by: Callable[[int], None]) -> int:
    """Of a rank whose monitor is terminated by these, one after the other."""
    (counts, ready), (ended, end) = os.pipe(), os.pipe()
    monitor = os.fork()
    if monitor == 0:
        os.close(end)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, agent.WATCHED)
        rank = os.fork()
        if rank == 0:
            counting(ready, ended)
        os._exit(agent._wait(rank)[0])
    assert os.read(counts, 1) == b"!"
    for i, terminate in enumerate(by):
        terminate(monitor)
        assert i or os.read(counts, 1) == b"!"
        time.sleep(PAUSE)
    for descriptor in (end, ended, ready, counts):
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(monitor, 0)[1])


@pytest.mark.parametrize("by", [(torchrun,), (launcher,), (launcher, torchrun), (torchrun, torchrun)])
def test_a_rank_is_terminated_once_so_that_it_can_write_where_it_stands(by: tuple[Callable[[int], None], ...]) -> None:
    assert sigterms(*by) == 1
