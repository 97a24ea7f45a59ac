"""What a job holds while it runs: memory of each GPU by nvidia-smi, and of the host, once a second."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

SECONDS = 1.0
STEPS = 10
"""Over so many steps the largest value counts: a step goes through phases that hold different amounts."""


class Sample(NamedTuple):
    step: int
    """How many were complete."""
    device: tuple[float, ...]
    """GiB of each GPU; of all processes on it."""
    host: float
    """GiB: anonymous memory of all processes of the job, and the machine's shared memory."""


class Watch:
    """Use as a context. `steps`: how many are complete."""

    def __init__(self, pid: int, steps: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self._pid, self._steps = pid, steps
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            self.samples.append(Sample(self._steps(), device(), host(self._pid)))


def device() -> tuple[float, ...]:
    if not shutil.which("nvidia-smi"):
        return ()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    return tuple(round(int(mib) / 1024, 2) for mib in found if mib.isdecimal())


def host(pid: int) -> float:
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return round((sum(anonymous(process.pid) for process in processes) + psutil.virtual_memory().shared) / 2**30, 3)


def anonymous(pid: int) -> int:
    """Bytes of a process that are neither files nor shared. 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def at(samples: list[Sample], step: int) -> dict[str, object]:
    """The largest within the steps before."""
    return largest([s for s in samples if step - STEPS < s.step <= step])


def largest(samples: list[Sample]) -> dict[str, object]:
    if not samples:
        return {}
    devices = zip(*(s.device for s in samples), strict=False)
    return {"device_gib": [max(values) for values in devices], "host_gib": max(s.host for s in samples)}
