"""Detects that a server is dead, stuck or frozen. Runs in the process that started it.

vLLM's API server answers without its engine, and stays up when the engine has died or hangs. So three things are checked:

    dead     an engine process has ended; checked every POLL_SECONDS, also while the server starts
    stuck    before its first answer, it has neither logged nor read anything for STUCK_SECONDS (loading itself may take any time); a part of a
             server of several pods, for STUCK_PART_SECONDS
    frozen   the API server has not answered for FROZEN_SECONDS, or its engine has not; BUSY_SECONDS while the engine computes or is updated;
             STILL_SECONDS when a process of the engine does not even run

The engine answers between two of its steps, so an answer proves that it makes progress. A long prefill, a compilation or a weight update delays it.
But whatever it does, its processes run at least once a second: also one that waits for the trainer looks for its next message (messages.py).
"""

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil

from rljob_trainer.wire.weights.protocol import HEALTH

BUSY_SHARE = 0.1
"""Fraction of one core. An engine that uses more is computing."""
ENGINE = re.compile(r"::(EngineCore|Worker|DPCoordinator)")
"""Matches the titles of vLLM's engine processes, and of the one that has those of data-parallel copies compute together (0.32,
vllm/utils/system_utils.py, set_process_title)."""


class EngineProcesses:
    """The engine processes of one server. `look` must be called about once a second."""

    def __init__(self, server: int) -> None:
        """`server`: pid of the API server."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._server = psutil.Process(server)
        self._engines: dict[psutil.Process, _Movement] = {}
        self._used, self._looked, self._computed = 0.0, time.monotonic(), 0.0
        self.bytes_read = 0
        """Bytes that the server and its living descendants have read, from files, pipes and disks."""

    def computed_within(self, seconds: float) -> bool:
        """Whether they have used CPU time in the last `seconds`."""
        return time.monotonic() - self._computed < seconds

    def look(self) -> str:
        """Look up all processes. Returns which engine process has ended; empty: none."""
        used, now, self.bytes_read = 0.0, time.monotonic(), _bytes_read(self._server)
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                times = process.cpu_times()
                used += times.user + times.system
                self.bytes_read += _bytes_read(process)
                if process in self._engines or ENGINE.search(" ".join(process.cmdline())):
                    self._engines.setdefault(process, _Movement()).see(times, process.num_ctx_switches())
        if used - self._used > BUSY_SHARE * (now - self._looked):
            self._computed = now
        self._used, self._looked = used, now
        return next((f"the engine's process {p.pid} ended" for p in self._engines if not _runs(p)), "")

    def still(self, seconds: float) -> str:
        """Which engine process has not run for `seconds`; empty: none. One may wait for another, so all of them have to stand still, or one has to be
        stopped or stuck in the kernel."""
        still = self._still(seconds)
        all_are = len(still) == len(self._engines) and not self.computed_within(seconds)
        return self.halted(seconds) or (_not_run(still[0], seconds) if still and all_are else "")

    def halted(self, seconds: float) -> str:
        """Which engine process has been stopped, or stuck in the kernel, for `seconds`; empty: none."""
        return next((_not_run(p, seconds) for p in self._still(seconds) if _status(p) in HALTED), "")

    def _still(self, seconds: float) -> list[psutil.Process]:
        return [p for p, movement in self._engines.items() if movement.seconds > seconds]

    def _descendants(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return self._server.children(recursive=True)
        return []


class _Movement:
    """Whether a process runs: its CPU time and its context switches grow."""

    def __init__(self) -> None:
        self._seen: object = None
        self._since = time.monotonic()

    def see(self, *measured: object) -> None:
        if measured != self._seen:
            self._seen, self._since = measured, time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it last ran."""
        return time.monotonic() - self._since


def _bytes_read(process: psutil.Process) -> int:
    """Bytes of `read` calls, and of mapped pages that were read from disk."""
    try:
        counters = process.io_counters()
        return int(counters.read_chars + counters.read_bytes)
    except psutil.Error:
        return 0


def _not_run(process: psutil.Process, seconds: float) -> str:
    return f"the engine's process {process.pid} has not run for {seconds:.0f} s ({_status(process)})"


def _runs(process: psutil.Process) -> bool:
    """Whether the process is alive, and not a zombie."""
    return process.is_running() and _status(process) not in ("", psutil.STATUS_ZOMBIE)


def _status(process: psutil.Process) -> str:
    """Empty: it has ended."""
    try:
        return str(process.status())
    except psutil.Error:
        return ""


POLL_SECONDS = 1.0
ASK_SECONDS = 2.0
"""Interval of health requests."""
ANSWER_SECONDS = 10.0
"""Time limit of a health request."""
FROZEN_SECONDS = 30.0
STILL_SECONDS = 15.0
"""Silence of an engine after which its processes have to show that they run."""
HALTED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_DISK_SLEEP)
BUSY_SECONDS = 180.0
"""Longer than any step, compilation or part of a weight update (protocol.py) takes."""
STUCK_SECONDS = 600.0
"""Compiling a large model may take minutes without any output or input."""
STUCK_PART_SECONDS = 3600.0
"""A pod that has loaded its part waits for slower ones, silently: for 1800 s at most, the limit of vLLM's collectives over gloo (0.32), which then
raise. This one is for pods that all hang."""
STUCK_BYTES = 2**20
"""Reading less than this is not progress: idle processes read from their own pipes."""
STUCK_TALK = re.compile(rb"No available shared memory broadcast block found")
"""Output that is not progress: an engine logs it every minute while it waits for a worker that hangs (0.32, shm_broadcast.py)."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a server must be replaced."""

    reason: str
    dead: bool = False
    """Its engine has ended, and may have logged why."""
    elsewhere: bool = False
    """The cause is in another pod of the server."""


class HealthCheck:
    """The health check of one server, in the process that started it, which passes its output to `heard`."""

    def __init__(self, pid: int, url: str, token: str, is_part: bool = False) -> None:
        """`pid`: of the API server. `url`: where it will answer. `is_part`: of a server of several pods."""
        self._url, self._token, self._is_part = url, token, is_part
        self._engine = EngineProcesses(pid)
        self._moved, self._bytes_read = time.monotonic(), 0
        self._answered: float | None = None
        """Time of its last answer."""

    def heard(self, output: bytes) -> None:
        if not STUCK_TALK.search(output):
            self._moved = time.monotonic()

    def answered(self) -> None:
        """It has answered somebody else."""
        self._answered = time.monotonic()

    async def lost(self) -> Lost:
        """Returns once the server is dead, stuck or frozen."""
        checks = [asyncio.create_task(self._dead_or_stuck()), asyncio.create_task(self._frozen())]
        try:
            done, _ = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
            return next(check.result() for check in done)
        finally:
            for check in checks:
                check.cancel()

    async def _dead_or_stuck(self) -> Lost:
        while True:
            reason = self._engine.look()
            if reason:
                return Lost(reason, dead=True)
            limit = STUCK_PART_SECONDS if self._is_part else STUCK_SECONDS
            seconds = self._idle_seconds() if self._answered is None else 0.0
            if seconds > limit:
                return Lost(f"it has neither logged nor read anything for {seconds:.0f} s while it started")
            await asyncio.sleep(POLL_SECONDS)

    def _idle_seconds(self) -> float:
        """Seconds since it last logged anything, or read STUCK_BYTES more."""
        if abs(self._engine.bytes_read - self._bytes_read) > STUCK_BYTES:
            self._moved, self._bytes_read = time.monotonic(), self._engine.bytes_read
        return time.monotonic() - self._moved

    async def _frozen(self) -> Lost:
        """Returns once the server is frozen. Only checked after its first answer."""
        timeout = aiohttp.ClientTimeout(ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}"}
        async with aiohttp.ClientSession(self._url, headers=headers, timeout=timeout) as session:
            while True:
                await asyncio.sleep(ASK_SECONDS)
                answer = await _ask(session)
                now = time.monotonic()
                self._answered = now if answer else self._answered
                lost = self._engine_lost(answer) if answer else None
                if lost:
                    return lost
                if self._answered and now - self._answered > FROZEN_SECONDS:
                    return Lost(f"the API server has not answered for {now - self._answered:.0f} s")

    def _engine_lost(self, answer: dict[str, Any]) -> Lost | None:
        """What is wrong with the engine according to the API server's answer; None: nothing."""
        if "error" in answer:
            return Lost(f"the engine failed: {answer['error']}", dead=True)
        reason = self._engine.still(STILL_SECONDS) if answer["silence"] > STILL_SECONDS else ""
        if reason:
            return Lost(reason)
        busy = answer["updating"] or self._engine.computed_within(FROZEN_SECONDS)
        if answer["silence"] > (BUSY_SECONDS if busy else FROZEN_SECONDS):
            return Lost(f"the engine has not answered for {answer['silence']:.0f} s")
        return None


async def _ask(session: aiohttp.ClientSession) -> dict[str, Any] | None:
    """The API server's answer to a health request; None: it did not answer."""
    try:
        async with session.get(HEALTH) as response:
            answer: dict[str, Any] = await response.json()
            return answer
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
