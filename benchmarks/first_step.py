"""From the start of an attempt to its first step, split by what takes the time: the first attempt of a job, and the one after a rank was killed.

    python -m benchmarks.first_step [--size 7b] [--gpus 2] [--tensor 2] [--save] [--device gpu] [--out FILE]

GRPO by `python -m rljob_trainer run`, colocated. After the first step the last of the trainer's ranks gets SIGKILL. `--save`: every step ends with
a checkpoint, from which the second attempt resumes; otherwise it begins at step 0 again. Seconds are counted from the command, and for the second
attempt from the kill, until a line of a log, or the step's metrics, was first seen; ranks and server start at the same time.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import jobs, scratch, step
from benchmarks.gpu_failures import ranks_of
from benchmarks.shapes import MODELS, model_of

MOMENTS = {
    "attempt begins": " begins; node rank",
    "ranks have met": "memory by phase",
    "vLLM has imported": "Initializing a V1 LLM engine",
    "vLLM has loaded": "Loading weights took",
    "vLLM has compiled": "torch.compile took",
    "vLLM has captured graphs": "Graph capturing finished",
    "vLLM's engine is ready": "init engine (profile",
    "ranks have loaded": "COMPUTES WITH",
}
"""What each line of a log says; every rank and server may write it."""
STEP = "first step"
LIMIT_SECONDS = 420
POLL_SECONDS = 0.1


def main() -> int:
    options = parser().parse_args()
    model = model_of(options.size)
    with scratch.directory(options.work, "first-step") as options.work:
        step.write_inputs(options.work / "data")
        rows = measure(options, model)
    options.out.write_text(json.dumps(rows, indent=1))
    print(jobs.table(rows))
    return int(any(STEP not in row for row in rows))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.first_step")
    made.add_argument("--size", choices=list(MODELS), default="7b")
    made.add_argument("--gpus", type=int, default=2)
    made.add_argument("--tensor", type=int, default=2)
    made.add_argument("--prompts", type=int, default=16)
    made.add_argument("--max-tokens", type=int, default=256)
    made.add_argument("--save", action="store_true")
    made.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    made.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of both attempts")
    made.add_argument("--out", type=Path, default=Path("first_step.json"))
    made.add_argument("--work", type=Path, help=scratch.HELP)
    return made


def measure(options: argparse.Namespace, model: Path) -> list[dict[str, Any]]:
    """A row for each attempt."""
    data, name = options.work / "data", "bench-first-step"
    process = jobs.start(options.work, name, job(options, model, data))
    logs, deadline = (options.work / f"logs-{name}", data / "run"), time.monotonic() + options.limit
    try:
        first = watched(logs, {}, deadline)
        before = counted(logs)
        os.kill(max(ranks_of(process.pid)), signal.SIGKILL)
        second = watched(logs, before, deadline)
    finally:
        jobs.stop(process)
    if STEP not in second:
        print("\n".join(jobs.tails(*logs)), flush=True)
    return [{"attempt": 1} | first, {"attempt": 2} | second]


def job(options: argparse.Namespace, model: Path, data: Path) -> dict[str, Any]:
    """That of benchmarks/step.py, which runs until it is stopped."""
    given = vars(step.parser().parse_args([])) | vars(options) | {"placement": "colocated", "steps": 100_000}
    spec = step.job(argparse.Namespace(**given), model, data)
    spec["checkpoint"]["everySteps"] = int(options.save)
    return spec | {"lifecycle": {"backoffSeconds": 0}}


def watched(logs: tuple[Path, Path], before: dict[str, int], deadline: float) -> dict[str, float]:
    """Seconds until each moment was first seen, up to the first step."""
    began, found = time.monotonic(), dict[str, float]()
    while STEP not in found and time.monotonic() < deadline:
        for what, count in counted(logs).items():
            if count > before.get(what, 0):
                found.setdefault(what, round(time.monotonic() - began, 1))
        time.sleep(POLL_SECONDS)
    return found


def counted(logs: tuple[Path, Path]) -> dict[str, int]:
    """How often each moment was written so far."""
    work, run = logs
    text = "".join(file.read_text(errors="replace") for file in sorted(work.glob("*.log")))
    return {what: text.count(line) for what, line in MOMENTS.items()} | {STEP: jobs.steps_of(run / "metrics.jsonl")}


if __name__ == "__main__":
    sys.exit(main())
