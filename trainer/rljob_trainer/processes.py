"""Child processes that never outlive their parent: each attempt's processes have sessions of their own; orphans that leave those are adopted.

`python -m rljob_trainer.processes MODULE [ARGUMENT...]`: `python -m MODULE`, killed when the process that started it ends.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent() -> None:
    """In a child: be killed when the thread that started us ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents ended, as PID 1 of a container is anyway."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_group(leader: int, number: signal.Signals) -> None:
    """Signal the session leader's group, if there is one left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def sweep(known: set[int]) -> None:
    """Kill and reap our children but for those in `known`, which somebody else waits for; then theirs, which become ours."""
    while strangers := children() - known:
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


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


def _parent(pid: int) -> int | None:
    """None when the process is gone, or somebody else's whom we may not look at. In /proc/<pid>/stat the name in parentheses may hold any bytes,
    also half a letter, so read from its end."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def tied(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of `python -m module`, killed when the process that starts it ends."""
    return (sys.executable, "-u", "-m", __name__, module, *arguments)


if __name__ == "__main__":
    die_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
