"""What a job on GPUs says of a failure, how soon, and how long until it trains again: `python -m rljob_trainer run`, colocated.

    python -m benchmarks.gpu_failures [nan assert kill] [--gpus N] [--device gpu] [--size 0.1b] [--out FILE]

`nan`: the loss of a micro-batch is not a number. `assert`: a kernel of the backward pass reads out of bounds (a device-side assert, which takes the
CUDA context with it). Both are done by a policy loss of the job's own (`algorithm.lossFunction`), once, after step 2. `kill`: SIGKILL of the last of
the trainer's ranks, which are in tensor parallelism of `--gpus`. Each has a job of its own; a checkpoint follows every step.

Prints for each the seconds from the failure to the launcher's report with its cause, and to the first new step of the next attempt.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks import jobs, scratch, step
from benchmarks.shapes import MODELS, model_of
from rljob_api import names
from rljob_api.protocol import Report

FAILURES = ("nan", "assert", "kill")
BEFORE, ENOUGH = 2, 1_000_000
LIMIT_SECONDS = 280
RANK = "python -m rljob_trainer.rank.main"
"""How a rank is called among processes."""
LOSS = '''
import os
import time

import torch


class ReadsOutOfBounds(torch.autograd.Function):
    """In the backward pass, as a broken kernel would."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        flat = gradient.flatten()
        place = torch.full_like(flat, 1 << 20, dtype=torch.int64)
        return flat.gather(0, place).view_as(gradient)


def loss(tokens, sequences, armed, happened, what):
    ratio = (tokens.log_probs - tokens.old_log_probs).exp()
    found = -ratio * tokens.advantages
    if os.path.exists(armed) and tokens.log_probs.requires_grad:
        try:
            os.unlink(armed)
        except FileNotFoundError:
            return found
        with open(happened, "w") as file:
            file.write(repr(time.time()))
        return found * float("nan") if what == "nan" else ReadsOutOfBounds.apply(found)
    return found
'''


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_failures")
    parser.add_argument("failures", nargs="*", choices=[*FAILURES, []], default=list(FAILURES))
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--size", choices=list(MODELS), default="0.1b")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a job")
    parser.add_argument("--out", type=Path, default=Path("gpu_failures.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    model = model_of(options.size)
    with scratch.directory(options.work, "failures") as options.work:
        step.write_inputs(options.work)
        (options.work / "loss.py").write_text(LOSS)
        rows = jobs.record(options.out, ([Broken(failure, options, model).measure()] for failure in options.failures))
    return int(any(not row["survived"] for row in rows))


class Broken:
    """One job that is broken once."""

    def __init__(self, failure: str, options: argparse.Namespace, model: Path) -> None:
        self._failure, self._options = failure, options
        self._name = f"bench-{failure}"
        self._armed, self._happened = (options.work / f"{failure}-{state}" for state in ("armed", "happened"))
        self._run = options.work / f"run-{failure}"
        self._spec = self._job(model)

    def measure(self) -> dict[str, Any]:
        for file in (self._armed, self._happened):
            file.unlink(missing_ok=True)
        self._process = jobs.start(self._options.work, self._name, self._spec)
        self._deadline = time.monotonic() + self._options.limit
        row: dict[str, Any] = {"failure": self._failure, "gpus": self._options.gpus, "survived": False}
        try:
            self._until(lambda: self._steps() >= BEFORE, "the first steps")
            self._break()
            report = self._until(self._cause, "a cause")
            happened = float(self._happened.read_text())
            cause = report.failure
            row |= {"seconds_to_cause": round(time.time() - happened, 1), "kind": cause.kind, "rank": cause.rank}
            row |= {"cause": f"{cause.exception}: {cause.message}"[:400]}
            known = self._steps()
            self._until(lambda: self._steps() > known, "a new step")
            row |= {"seconds_to_step": round(time.time() - happened, 1), "survived": True}
        except TimeoutError as error:
            row |= {"said": str(error)}
            print("\n".join(jobs.tails(self._options.work / f"logs-{self._name}", self._run)), flush=True)
        finally:
            jobs.stop(self._process)
        print(json.dumps(row), flush=True)
        return row

    def _until(self, found: Callable[[], Any], what: str) -> Any:
        while not (value := found()):
            if self._process.poll() is not None or time.monotonic() > self._deadline:
                said = (self._options.work / f"{self._name}.out").read_text().strip().splitlines()[-3:]
                raise TimeoutError(f"no {what}: {' '.join(said)}")
            time.sleep(0.05)
        return value

    def _steps(self) -> int:
        return jobs.steps_of(self._run / "metrics.jsonl")

    def _break(self) -> None:
        if self._failure != "kill":
            self._armed.touch()
            return
        ranks = ranks_of(self._process.pid)
        assert len(ranks) == self._options.gpus, ranks
        self._happened.write_text(repr(time.time()))
        os.kill(max(ranks), signal.SIGKILL)

    def _cause(self) -> Report | None:
        """The launcher's report of the first attempt's end."""
        name = names.report(names.pod(self._name, names.ROLE_TRAINER, 0))
        file = self._options.work / f"logs-{self._name}" / "channel" / f"{name}.json"
        report = Report.model_validate_json(file.read_text())
        return report if report.failure and self._happened.exists() else None

    def _job(self, model: Path) -> dict[str, Any]:
        options, gpu = self._options, self._options.device == "gpu"
        arguments = {"armed": str(self._armed), "happened": str(self._happened), "what": self._failure}
        function = {"path": str(options.work / "loss.py"), "function": "loss", "arguments": arguments}
        return {
            "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"},
            "data": {"train": [str(options.work / "train.parquet")], "maxPromptTokens": 256},
            "rewards": [{"python": {"path": str(options.work / "reward.py")}}],
            "algorithm": {"advantage": "grpo", "loss": "python", "lossFunction": function},
            "train": {"steps": ENOUGH, "promptsPerStep": 8, "samplesPerPrompt": 4, "tokensPerMicroBatch": 8192},
            "trainer": {
                "device": options.device,
                "processesPerNode": options.gpus,
                "parallelism": {"tensor": options.gpus},
            },
            "rollout": {
                "placement": "colocated",
                "sampling": {"maxTokens": 32},
                "vllmArgs": jobs.shared_gpu(0.15, 8) | {"enforce-eager": True} if gpu else {},
            },
            "lifecycle": {"maxRestarts": 3, "backoffSeconds": 0},
            "checkpoint": {"path": str(self._run), "everySteps": 1, "keepLast": 2, "exportHuggingFace": False},
        }


def ranks_of(job: int) -> list[int]:
    """Processes of the job's ranks, without those that they have started."""
    found = {
        process.pid: process.ppid() for process in psutil.Process(job).children(recursive=True) if is_rank(process)
    }
    return sorted(pid for pid, parent in found.items() if parent not in found)


def is_rank(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(RANK)
    except psutil.Error:
        return False


if __name__ == "__main__":
    sys.exit(main())
