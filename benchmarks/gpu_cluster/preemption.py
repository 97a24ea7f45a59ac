"""Let a job of higher priority take the GPUs of a running one, and measure how long each of the two waits.

    python -m benchmarks.gpu_cluster.preemption [--layout colocated] [--steps 3] [--limit 240]

A job of the layout must take all GPUs of the cluster, so that two do not fit: `colocated` on one GPU, `tensor-parallel` on two, `cpu` on `up 0`.
The first job finishes its step, saves and leaves; the second one trains its steps and ends; the first one resumes. Exit status 1 if it does not, or
if a step of it was lost.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_cluster.job import Watched
from rljob_api.status import JobStatus

BEFORE = 12
"""Steps of the first job before the second one comes: beyond its checkpoint of step 10, so that the save on leaving is another one."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_cluster.preemption")
    parser.add_argument("--layout", default="colocated")
    parser.add_argument("--steps", type=int, default=3, help="of the second job")
    parser.add_argument("--limit", type=float, default=240, help="seconds for each part")
    options = parser.parse_args()
    layout, evaluation = options.layout, {"everySteps": 1_000_000}
    with Watched("preempted", layout, 100_000, evaluation=evaluation) as first:
        first.wait(f"step {BEFORE}", lambda s: s.progress.step >= BEFORE, options.limit)
        high = {"priority": 10}
        with Watched("preemptor", layout, options.steps, evaluation=evaluation, scheduling=high) as second:
            left, resumed = exchanged(first, second, options.limit)
        found = faults(left, resumed, trained(first.run))
        first.say(f"steps {left.progress.step} before, {resumed.progress.step} after; lost steps {resumed.lost_steps}")
        for fault in found:
            first.say(f"FAULT: {fault}")
    return int(bool(found))


def exchanged(first: Watched, second: Watched, limit: float) -> tuple[JobStatus, JobStatus]:
    """From the second job's creation to a new step of the first one. Returns the first one's status when it had left, and at that step."""
    left = first.wait("GPUs released", lambda s: s.preemption and s.preemption.released, limit)
    second.say(f"GPUs released by {first.job.name} after {second.seconds:.1f} s")
    second.wait("first step", lambda s: s.progress.step >= 1, limit)
    second.say(f"first step after {second.seconds:.1f} s")
    second.wait("end", lambda s: s.state == "Succeeded", limit)
    ended = second.seconds
    second.say(f"ended after {ended:.1f} s")
    resumed = first.wait("next step", lambda s: s.progress.step > left.progress.step, limit)
    first.say(f"next step {second.seconds - ended:.1f} s after that")
    return left, resumed


def trained(run: Path) -> list[int]:
    """Every step in the order in which it was trained, by the run's metrics."""
    rows = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [row["step"] for row in rows if "time/step" in row]


def faults(left: JobStatus, resumed: JobStatus, steps: Sequence[int]) -> list[str]:
    """What is not as if the first job had never waited."""
    step, saved = left.progress.step, left.checkpoint.latest
    expected = {
        f"saved its last step {step}": saved is not None and saved.step == step,
        f"began again at step {step}": resumed.progress.started_from == step,
        "lost no step": resumed.lost_steps == 0,
        "counted no restart": resumed.restarts.total == 0,
        f"has metrics of every step up to {step} and of a later one": list(steps)
        == [*range(1, max(len(steps), step + 1) + 1)],
    }
    return [f"not so: {what}" for what, holds in expected.items() if not holds]


if __name__ == "__main__":
    sys.exit(main())
