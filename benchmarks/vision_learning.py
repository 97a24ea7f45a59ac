"""examples/vision on a GPU: a digit in a picture, learned with GRPO from several seeds, warm-up and all.

    [CUDA_VISIBLE_DEVICES=N] python -m benchmarks.vision_learning [--seeds 0 1 2] [--dtype bfloat16] [--device gpu] [--out FILE]

One seed after the other on the first GPU that is visible: a command for each GPU with seeds, `--out` and `--work` of its own uses several. The seed
is that of data, weights, warm-up and samples. Prints held-out accuracy before, at half-time and at the end.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import jobs, scratch

EXAMPLE = Path(__file__).parents[1] / "examples" / "vision"
HELD_OUT = "evaluation/reward"
LIMIT_SECONDS = 500


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.vision_learning")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=60, help="steps of it")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("vision_learning.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "vision-learning") as options.work:
        rows = jobs.record(options.out, ([learned(seed, options)] for seed in options.seeds))
    return int(any(row["exit"] for row in rows))


def learned(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    root, began = (options.work / f"seed-{seed}").resolve(), time.monotonic()
    shutil.rmtree(root, ignore_errors=True)
    prepare = ["--seed", str(seed), *settings({"trainer.device": options.device, "train.steps": options.warm_up})]
    code = call(root, [str(EXAMPLE / "prepare.py"), str(root), *prepare])
    warmed = time.monotonic() - began
    if code == 0:
        manifest = root / "rljob.yaml"
        manifest.write_text(yaml.safe_dump(job(seed, options)))
        code = call(root, [*jobs.PRODUCT, "run", str(manifest), f"--mount=/data={root}", "--work", str(root / "logs")])
    if code:
        print("\n".join(jobs.tails(root)), flush=True)
    seconds = {"warm_up_seconds": round(warmed, 1), "seconds": round(time.monotonic() - began, 1)}
    row = {"seed": seed, "exit": code} | seconds | figures(jobs.rows_of(root / "run" / "metrics.jsonl"))
    print(json.dumps(row), flush=True)
    return row


def job(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The example's own, on one device, with its server on it too."""
    made = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())
    spec = made["spec"]
    spec["model"]["dtype"], spec["data"]["seed"] = options.dtype, seed
    spec["train"]["steps"], spec["evaluation"]["everySteps"] = options.steps, max(1, options.steps // 2)
    spec["trainer"] = {"device": options.device}
    arguments = jobs.shared_gpu(0.1, 4) if options.device == "gpu" else {}
    sampling = spec["rollout"]["sampling"]
    spec["rollout"] = {"placement": "colocated", "sampling": sampling, "vllmArgs": arguments}
    return made


def settings(changes: dict[str, Any]) -> list[str]:
    return [f"--set={path}={value}" for path, value in changes.items()]


def call(root: Path, arguments: list[str]) -> int:
    root.mkdir(parents=True, exist_ok=True)
    return subprocess.run([sys.executable, *arguments], timeout=LIMIT_SECONDS).returncode


def figures(rows: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Held-out accuracy by step, and the largest differences between trainer and vLLM of all steps."""
    accuracy = {f"step {n}": round(row[HELD_OUT], 3) for n, row in sorted(rows.items()) if HELD_OUT in row}
    return accuracy | jobs.worst(rows.values())


if __name__ == "__main__":
    sys.exit(main())
