"""Break one running job on the cluster, in every way that a user meets, and measure how long until it trains again.

    python -m benchmarks.gpu_cluster.faults [pod rank engine suspend resume from-step] [--layout colocated] [--limit 90]

A pod is deleted; a rank and a server's EngineCore get SIGKILL; the job is suspended and resumed, and sent back to an earlier checkpoint,
both by `kubectl rljob`. Each has its limit in seconds and costs the others nothing. Exit status 1 if one was not survived.
"""

import argparse
import sys
import time
from collections.abc import Callable

from benchmarks.gpu_cluster.job import Watched
from rljob_api import names
from rljob_api.status import JobStatus

KILL = """
import os, pathlib, signal, sys
def line(p):
    try: return (p / sys.argv[1]).read_bytes()
    except OSError: return b""
found = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdecimal() and line(p).startswith(sys.argv[2].encode())]
for pid in found: os.kill(pid, signal.SIGKILL)
print("SIGKILL to", found)
assert found
"""
"""`KILL FILE START`: all processes whose /proc/PID/FILE begins so."""

FAULTS = ("pod", "rank", "engine", "suspend", "resume", "from-step")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cluster.faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"default: {' '.join(FAULTS)}")
    parser.add_argument("--layout", default="colocated")
    parser.add_argument("--limit", type=float, default=90, help="seconds for each fault")
    options = parser.parse_args()
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"{', '.join(unknown)}: must be of {', '.join(FAULTS)}")
    lifecycle = {"backoffSeconds": 0, "maxRestarts": 100}
    evaluation = {"everySteps": 1_000_000}
    with Watched("faults", options.layout, 100_000, lifecycle=lifecycle, evaluation=evaluation) as watched:
        faults = Faults(watched, options.limit)
        if not faults.survives("start", lambda: None, faults.trains, 2 * options.limit):
            return 1
        return sum([not faults.survives(name, *faults.of(name)) for name in options.faults or FAULTS]) and 1


class Faults:
    """Each breaks the job; what follows says when it has been survived."""

    def __init__(self, watched: Watched, limit: float) -> None:
        self._watched, self._limit, self._job = watched, limit, watched.job
        self._before = JobStatus()
        self._earlier = 0

    def of(self, name: str) -> tuple[Callable[[], object], Callable[[JobStatus], bool]]:
        """What to do, and what holds once it has been survived."""
        found: dict[str, tuple[Callable[[], object], Callable[[JobStatus], bool]]] = {
            "pod": (self._delete, self._trains_again),
            "rank": (lambda: self._kill("cmdline", "python -m rljob_trainer.rank.main"), self._trains_again),
            "engine": (lambda: self._kill("comm", "VLLM::EngineCor"), self.trains),
            "suspend": (lambda: self._plugin("suspend"), lambda s: s.state == "Suspended" and not self._job.pods()),
            "resume": (lambda: self._plugin("resume"), self._trains_again),
            "from-step": (self._go_back, self._is_back),
        }
        return found[name]

    def survives(
        self, what: str, do: Callable[[], object], survived: Callable[[JobStatus], bool], limit: float | None = None
    ) -> bool:
        """Do it, and print seconds and steps until it is survived. False when it is not within the limit."""
        limit = limit or self._limit
        try:
            self._before = self._job.status()
            began = time.monotonic()
            do()
            while not survived(self._job.status()):
                self._watched.look()
                if time.monotonic() - began > limit:
                    raise TimeoutError(f"not within {limit:.0f} s: {self._job.status().message}")
                time.sleep(0.25)
        except Exception as error:  # the next fault still has something to say
            self._watched.say(f"FAULT {what}: {type(error).__name__}: {error}")
            return False
        step = self._job.status().progress.step
        self._watched.say(
            f"FAULT {what}: survived after {time.monotonic() - began:.1f} s; step {self._before.progress.step}, now {step}"
        )
        return True

    def trains(self, status: JobStatus) -> bool:
        """The attempt that was there has gone on by some steps, or a later one has done one."""
        return status.progress.step >= self._before.progress.step + 12 or self._trains_again(status)

    def _trains_again(self, status: JobStatus) -> bool:
        """A later attempt has done a step."""
        former = self._before.attempt.number if self._before.attempt else 0
        progress = status.progress
        return progress.attempt > max(former, 1) and progress.step > (progress.started_from or 0)

    def _is_back(self, status: JobStatus) -> bool:
        return self._trains_again(status) and status.progress.started_from == self._earlier

    def _delete(self) -> None:
        pod = names.pod(self._job.name, names.ROLE_TRAINER, 0)
        self._job.kube.kubectl("delete", "pod", pod, "--grace-period=1", "--wait=false")

    def _kill(self, file: str, start: str) -> None:
        pod = names.pod(self._job.name, names.ROLE_TRAINER, 0)
        self._watched.say(self._job.kube.execute(pod, "python", "-c", KILL, file, start).strip())

    def _plugin(self, *arguments: str) -> None:
        self._watched.say(self._job.kube.plugin(*arguments, self._job.name).strip())

    def _go_back(self) -> None:
        """To the oldest checkpoint that is kept."""
        self._earlier = min(checkpoint.step for checkpoint in self._job.status().checkpoint.kept)
        self._plugin("resume", "--from-step", str(self._earlier))


if __name__ == "__main__":
    sys.exit(main())
