"""One job for a long time: does it learn, and do memory of every process and agreement of trainer and servers stay where they are?

    python -m benchmarks.long_run [--minutes 25] [--architecture qwen2_large] [--learning-rate 5e-6] [--device gpu|cpu] [--out FILE]

examples/arithmetic with a model that is made and warmed up first (`qwen2_large`: 126 M parameters), its server on the trainer's GPU, a save every 50
steps and an evaluation every 100; no save and no evaluation is waited for at the end. Prints, for each quarter of the time: steps, reward,
differences between log-probabilities of trainer and server, seconds of a step, and at its end memory of each process and of the GPU. FILE gets the
same, with the mean reward of every ten steps and held-out accuracy by step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from benchmarks import jobs, scratch
from benchmarks.memory import anonymous, device

EXAMPLE = Path(__file__).parents[1] / "examples" / "arithmetic"
STEPS = 1_000_000
SECONDS = 10.0
"""Between two looks at memory."""
QUARTERS = 4
MEANS = {
    "reward": "reward/mean",
    "difference": "train_rollout/log_prob_diff_mean",
    "seconds_of_a_step": "time/step",
}
LARGEST = {"largest_difference": "train_rollout/log_prob_diff_max"}
HELD_OUT = "evaluation/reward"


class Look(NamedTuple):
    """Memory at one time."""

    seconds: float
    """Since the job was started."""
    steps: int
    processes: dict[str, float]
    """MiB of each: anonymous, so neither files nor what processes share."""
    device: tuple[float, ...]
    """GiB of each GPU."""


def main() -> int:
    options = parser().parse_args()
    with scratch.directory(options.work, "long-run") as options.work:
        root = options.work.resolve()
        prepare = [f"--architecture={options.architecture}", f"--set=trainer.device={options.device}"]
        subprocess.run([sys.executable, str(EXAMPLE / "prepare.py"), str(root), *prepare], check=True)
        found, looks, said = trained(root, options)
    row = vars(options) | {"work": None, "out": None, "steps": jobs.trained(found)} | summary(found, looks)
    options.out.write_text(json.dumps(row) + "\n")
    print(jobs.table(row["quarters"]), *said, sep="\n")
    return int(not found)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.long_run")
    made.add_argument("--minutes", type=float, default=25, help="of the job, with its start")
    made.add_argument("--architecture", default="qwen2_large", help="of examples/arithmetic/prepare.py")
    made.add_argument("--learning-rate", type=float, default=5e-6)
    made.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    made.add_argument("--out", type=Path, default=Path("long-run.json"))
    made.add_argument("--work", type=Path, help=scratch.HELP)
    return made


def spec(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The example's for GPUs, on one device, with paths of this machine."""
    made = yaml.safe_load((EXAMPLE / "gpu.yaml").read_text())["spec"]
    gpu = options.device == "gpu"
    made["model"] = {"path": str(root / "model"), "dtype": "bfloat16" if gpu else "float32"}
    made["data"] |= {
        key: [path.replace("/data", str(root), 1) for path in made["data"][key]] for key in ("train", "validation")
    }
    made["train"] |= {"steps": STEPS, "optimizer": {"learningRate": options.learning_rate}}
    made["evaluation"]["everySteps"] = 100
    made["trainer"] = {"device": options.device}
    made["rollout"] = {
        "placement": "colocated",
        "sampling": made["rollout"]["sampling"],
        "vllmArgs": jobs.shared_gpu(0.2, 8) if gpu else {},
    }
    made["checkpoint"] = {"path": str(root / "run"), "everySteps": 50, "exportHuggingFace": False}
    del made["volumes"]
    return made


def trained(root: Path, options: argparse.Namespace) -> tuple[dict[int, dict[str, float]], list[Look], Sequence[str]]:
    """Metrics by step, looks at memory, and the end of what the job said."""
    log, over, looks = root / "run" / "metrics.jsonl", threading.Event(), list[Look]()
    process = jobs.start(root, "bench-long-run", spec(root, options))
    watching = threading.Thread(target=watch, args=(process.pid, lambda: jobs.steps_of(log), over, looks))
    watching.start()
    try:
        process.wait(60 * options.minutes)
    except subprocess.TimeoutExpired:
        over.set()  # or the last look would be at a job that ends
        jobs.stop(process)
    finally:
        over.set()
        watching.join()
    return jobs.rows_of(log), looks, (root / "bench-long-run.out").read_text().splitlines()[-5:]


def watch(pid: int, steps: Callable[[], int], over: threading.Event, looks: list[Look]) -> None:
    began = time.monotonic()
    while not over.wait(SECONDS):
        looks.append(Look(time.monotonic() - began, steps(), processes(pid), device()))


def processes(pid: int) -> dict[str, float]:
    """Anonymous memory of a process and its descendants, by number and name."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found[f"{title(process.cmdline())} ({process.pid})"] = round(anonymous(process.pid) / 2**20, 1)
        except psutil.Error:  # it has ended
            continue
    return found


def title(command: list[str]) -> str:
    """A module's name, or what the process calls itself."""
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return Path(command[0]).name if command else "?"


def summary(rows: dict[int, dict[str, float]], looks: list[Look]) -> dict[str, Any]:
    """By quarters of the time since the first step was complete, and the rewards of every ten steps."""
    while looks and not looks[0].steps:
        looks.pop(0)
    size = -(-len(looks) // QUARTERS)
    parts = [looks[n : n + size] for n in range(0, len(looks), max(size, 1))]
    steps = sorted(n for n, row in rows.items() if MEANS["reward"] in row)
    tens = [steps[n : n + 10] for n in range(0, len(steps), 10)]
    curve = [round(statistics.mean(rows[n][MEANS["reward"]] for n in ten), 4) for ten in tens]
    held_out = {n: round(row[HELD_OUT], 4) for n, row in sorted(rows.items()) if HELD_OUT in row}
    return {"quarters": [quarter(rows, part) for part in parts], "rewards": curve, "held_out": held_out}


def quarter(rows: dict[int, dict[str, float]], part: list[Look]) -> dict[str, Any]:
    """Memory is that of its end."""
    first, last = part[0], part[-1]
    own = [row for n, row in rows.items() if first.steps < n <= last.steps]
    means = {
        name: round(statistics.mean(values), 7)
        for name, key in MEANS.items()
        if (values := [row[key] for row in own if key in row])
    }
    largest = {
        name: round(max(values), 4)
        for name, key in LARGEST.items()
        if (values := [row[key] for row in own if key in row])
    }
    steps = {"minute": round(last.seconds / 60, 1), "step": last.steps}
    return steps | means | largest | {"device_gib": last.device} | last.processes


if __name__ == "__main__":
    sys.exit(main())
