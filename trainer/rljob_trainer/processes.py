"""Child processes that never outlive their parent: each attempt's processes have sessions of their own; orphans that leave those are adopted, and
known by their environment.

`python -m rljob_trainer.processes MODULE [ARGUMENT...]`: `python -m MODULE`, killed when the process that started it ends.
"""

import asyncio
import contextlib
import ctypes
import math
import os
import runpy
import secrets
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FAMILY = "RLJOB_FAMILY"
"""Environment variable by which the members of a Family are known."""
KILL_SECONDS, KILL_POLL_SECONDS = 5.0, 0.02
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """In a child: be killed when the thread that started us ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents ended, as PID 1 of a container is anyway."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


async def start_piped(
    command: Iterable[str], environment: Mapping[str, str], limit: int = 2**16, stderr: int | None = None
) -> Process:
    """A process in a session of its own, which reads and writes pipes of ours. `limit`: bytes of a line that it writes. `stderr`: file descriptor of
    its error output; None: ours.

    May be cancelled, also by the end of the loop. Python before 3.12.5 then waits for ever for a process whose pipes it has not connected
    (github.com/python/cpython/issues/119710), until it is cancelled again.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=stderr, env=environment, limit=limit, start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            starting.cancel()
            await asyncio.sleep(0)
        if not starting.cancelled() and not starting.exception():
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                starting.result().kill()
        raise


def kill_group(leader: int, number: signal.Signals) -> None:
    """Signal the session leader's group, if there is one left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def sweep(known: set[int]) -> None:
    """Kill and reap our children but for those in `known`, which somebody else waits for; then theirs, which become ours."""
    while strangers := children() - known:
        end(strangers)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class LivingProcess(NamedTuple):
    """What is known of one."""

    parent: int
    session: int
    family: str
    """Name of its ProcessTree; empty: it is of none, or somebody else's."""


def read_living() -> dict[int, LivingProcess]:
    """[pid] -> what is known of it, of all processes but zombies."""
    statuses = {pid: _status(pid) for pid in _processes()}
    return {
        pid: LivingProcess(int(status[_PARENT]), int(status[_SESSION]), _family(pid))
        for pid, status in statuses.items()
        if _lives(status)
    }


class ProcessTable:
    """All living processes, which are read once for several threads that ask at about the same time: that takes a tenth of a millisecond for each
    process of the machine."""

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._read_at = -math.inf
        self._living: dict[int, LivingProcess] = {}

    def living(self, age: float) -> Mapping[int, LivingProcess]:
        """As they were less than `age` seconds ago, or are now."""
        with self._reading:
            now = time.monotonic()
            if now >= self._read_at + age:
                self._living, self._read_at = read_living(), now
            return self._living


class ProcessTree:
    """A process that leads a session, and all that descend from it, also those that have left the session and lost their parents: they inherit a
    variable of its environment. One that has left the session and changed its environment, too, ends with the attempt, by `sweep`."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(16)
        self._session: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """To start the first process with."""
        return {FAMILY: self._name}

    def lead(self, first: int) -> None:
        """The first process has started, in a session of its own. vLLM's engines overwrite their environment with their titles."""
        self._session = first

    def members(self, living: Mapping[int, LivingProcess] | None = None) -> dict[int, int]:
        """[pid] -> its parent's. `living`: all processes, if they were read already."""
        every = read_living() if living is None else living
        return {pid: p.parent for pid, p in every.items() if p.session == self._session or p.family == self._name}

    def orphans(self, first: int, living: Mapping[int, LivingProcess] | None = None) -> set[int]:
        """Members whose line of parents does not lead to `first`: they outlive what started them, as daemons do. `living`: see `members`."""
        parents = self.members(living)
        known = {first}
        more = known
        while more:
            more = {pid for pid, parent in parents.items() if parent in known and pid not in known}
            known |= more
        return parents.keys() - known

    def kill(self) -> None:
        """Returns when no member runs, or after KILL_SECONDS: a process in the kernel cannot be killed. One that is dying has lost its environment
        before it gives back its files and its GPU memory."""
        deadline = time.monotonic() + KILL_SECONDS
        dying: set[int] = set()
        while time.monotonic() < deadline:
            members = self.members().keys()
            dying = members | {pid for pid in dying if _lives(_status(pid))}
            if not dying:
                return
            end(members)
            time.sleep(KILL_POLL_SECONDS)


def end(pids: Iterable[int]) -> None:
    """SIGKILL for those that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def reap(known: set[int]) -> None:
    """Collect dead orphans, and leave those alone that live."""
    for pid in children() - known:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def children() -> set[int]:
    """Our children in the process table, dead ones included."""
    return {pid for pid in _processes() if _parent(pid) == os.getpid()}


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _family(pid: int) -> str:
    """From the variables that it was started with; empty when it is gone, dead, or somebody else's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    mark = f"{FAMILY}=".encode()
    named = (variable.removeprefix(mark) for variable in variables if variable.startswith(mark))
    return next(named, b"").decode(errors="replace")


def _parent(pid: int) -> int | None:
    """None when the process is gone, or somebody else's whom we may not look at."""
    status = _status(pid)
    return int(status[_PARENT]) if status else None


def _lives(status: list[bytes]) -> bool:
    """Not gone, and not a zombie that waits for its parent."""
    return bool(status) and status[_STATE] not in (b"Z", b"X")


_STATE, _PARENT, _SESSION = 0, 1, 3


def _status(pid: int) -> list[bytes]:
    """What it is, whose and where (proc(5), /proc/<pid>/stat); empty when it is gone. The name in parentheses may hold any bytes, also half a
    letter, so this reads from its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def tied(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of `python -m module`, killed when the process that starts it ends."""
    return (sys.executable, "-u", "-m", __name__, module, *arguments)


if __name__ == "__main__":
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
