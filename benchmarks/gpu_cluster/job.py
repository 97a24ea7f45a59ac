"""Run the example's 126 M job on the cluster in some layouts, one after the other, and print what became of it.

    python -m benchmarks.gpu_cluster.job LAYOUT... [--steps 20] [--limit 120]     # LAYOUT: see manifests.py

A layout that fails or outlasts its limit (seconds) costs the others nothing. Logs of its pods, its object, its events and the logs of
its ranks go to $GPU_CLUSTER/logs/LAYOUT. Exit status 1 if one did not succeed.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_cluster.manifests import CPU, LAYOUTS, NAMESPACE, job, mounts_of
from e2e.job import Job
from e2e.kube import CommandFailed, Kube
from rljob_api.status import JobStatus

ENDED = ("Succeeded", "Failed")
LOOK = "id -u; touch /denied 2>&1; nvidia-smi -L 2>&1 | cut -c1-60"
SHOWN = ("reward/mean", "train_rollout/log_prob_diff_mean", "time/step")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cluster.job")
    parser.add_argument("layouts", nargs="+", choices=[*LAYOUTS, CPU])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=120, help="seconds for each")
    options = parser.parse_args()
    return sum(not run(layout, options.steps, options.limit) for layout in options.layouts) and 1


def run(layout: str, steps: int, limit: float) -> bool:
    """From `kubectl apply` to the end. True if it succeeded."""
    with Watched(layout, layout, steps) as watched:
        while watched.job.status().state not in ENDED and watched.seconds < limit:
            watched.look()
            time.sleep(0.5)
        watched.look()
        state = watched.job.status().state
        watched.say(f"{state} {figures(watched.run)}")
    return state == "Succeeded"


class Watched:
    """A job that is applied on entry, in place of a former one, and deleted on exit. Prints each change of its status and pods with the seconds."""

    def __init__(self, name: str, layout: str, steps: int, **changes: object) -> None:
        self._kube = Kube(Path(os.environ["KUBECONFIG"]), NAMESPACE)
        self._manifest = job(layout, name, steps, mounts_of(os.environ["POD_MOUNTS"]), **changes)
        self.job = Job(self._kube, name)
        self.run = Path(os.environ["DATA"], name)
        self.logs = Path(os.environ["GPU_CLUSTER"], "logs", name)
        self._said = ""
        self._followed: set[str] = set()

    def __enter__(self) -> "Watched":
        signal.signal(
            signal.SIGTERM, lambda *_: sys.exit("terminated")
        )  # what `timeout` sends: leave as at any other end
        self.job.delete()
        shutil.rmtree(self.run, ignore_errors=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        self._kube.apply(self._manifest)
        return self

    def __exit__(self, *_: object) -> None:
        (self.logs / "description.txt").write_text(self.job.describe())
        if (self.run / "logs").exists():
            shutil.copytree(self.run / "logs", self.logs / "run", dirs_exist_ok=True)
        self.job.delete()
        self.say("deleted")

    def wait(self, what: str, probe: Callable[[JobStatus], Any], timeout: float) -> JobStatus:
        """As Job.wait, looking at the job meanwhile."""

        def looked(status: JobStatus) -> Any:
            self.look()
            return probe(status)

        return self.job.wait(what, looked, timeout)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        print(f"{self.seconds:6.1f} s  {self.job.name}: {text}", flush=True)

    def look(self) -> None:
        status, pods = self.job.status(), self.job.pods()
        phases = " ".join(
            f"{p['metadata']['name'].removeprefix(self.job.name + '-')}={p['status']['phase']}" for p in pods
        )
        attempt = status.attempt.number if status.attempt else 0
        said = f"{status.state} attempt {attempt} step {status.progress.step} [{phases}] {status.message}"
        if said != self._said:
            self.say(said)
            self._said = said
        for pod in pods:
            if pod["status"]["phase"] == "Running" and pod["metadata"]["uid"] not in self._followed:
                self._follow(pod["metadata"]["name"], pod["metadata"]["uid"])

    def _follow(self, pod: str, uid: str) -> None:
        """Its log until it ends, and what it is allowed to do and see."""
        self._followed.add(uid)
        with (self.logs / f"{pod}-{uid[:4]}.log").open("w") as log:
            command = ("kubectl", "-n", NAMESPACE, "logs", "-f", pod)
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.say(f"{pod} sees: " + "; ".join(self._kube.execute(pod, "sh", "-c", LOOK, timeout=20).splitlines()))
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            self.say(f"{pod}: {error}")


def figures(run: Path) -> str:
    """Steps, their median time, and each shown metric of the first and the last one."""
    steps: dict[int, dict[str, float]] = {}
    if (run / "metrics.jsonl").exists():
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            steps.setdefault(row["step"], {}).update(row)
    trained = [row for _, row in sorted(steps.items()) if "time/step" in row]
    if not trained:
        return "without a step"
    median = statistics.median(row["time/step"] for row in trained)
    shown = (
        f"{name} {trained[0].get(name, float('nan')):.4g} to {trained[-1].get(name, float('nan')):.4g}"
        for name in SHOWN
    )
    return f"{len(trained)} steps, median {median:.2f} s; " + ", ".join(shown)


if __name__ == "__main__":
    sys.exit(main())
