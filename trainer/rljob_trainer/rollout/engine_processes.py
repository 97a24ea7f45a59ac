"""The processes that a rollout server has started, seen from outside: which of its engine's have ended, what they compute and read."""

import contextlib
import re
import time

import psutil

BUSY_SHARE = 0.1
"""Of one core. An engine that uses more computes."""
ENGINE = re.compile(r"::(EngineCore|Worker)")
"""In the titles of vLLM's engine processes (0.26, vllm/utils/system_utils.py, set_process_title)."""


class EngineProcesses:
    """Of one server. `look` is called about once a second."""

    def __init__(self, server: int) -> None:
        """`server`: pid of the API server."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._server = psutil.Process(server)
        self._engines: set[psutil.Process] = set()
        self._used, self._looked, self._computed = 0.0, time.monotonic(), 0.0
        self.bytes_read = 0
        """By the server and its descendants that live, from files, pipes and disks."""

    def computed_within(self, seconds: float) -> bool:
        """Whether they have used a processor in the last `seconds`."""
        return time.monotonic() - self._computed < seconds

    def look(self) -> str:
        """Which process of the engine has ended; empty when none has."""
        used, now, self.bytes_read = 0.0, time.monotonic(), _bytes_read(self._server)
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):  # it has just ended
                times = process.cpu_times()
                used += times.user + times.system
                self.bytes_read += _bytes_read(process)
                if ENGINE.search(" ".join(process.cmdline())):
                    self._engines.add(process)
        if used - self._used > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._used, self._looked = used, now
        return next((f"the engine's process {p.pid} ended" for p in self._engines if not _runs(p)), "")

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return self._server.children(recursive=True)
        return []


def _bytes_read(process: psutil.Process) -> int:
    """`read` calls, and pages of mapped files that came from a disk."""
    try:
        counters = process.io_counters()
        return int(counters.read_chars + counters.read_bytes)
    except psutil.Error:
        return 0


def _runs(process: psutil.Process) -> bool:
    """Not a zombie either."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
