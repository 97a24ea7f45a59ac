"""What `rolloutCorrection.routerReplay` does to the difference between trainer and vLLM, on a small random Qwen3-MoE in bfloat16.

    python -m benchmarks.router_replay [--replays none trainer rollout] [--steps 3] [--device gpu] [--out FILE]

4 layers, 32 experts of which a token chooses 4; GRPO, colocated, two optimizer steps a step. A job for each value, from the same weights and prompts:
mean and largest |difference| of log-probabilities of trainer and vLLM, and the divergence of the two, by step. `trainer` replays in the updates
alone, so what it changes is `ratio_max` and `approx_kl` of the second update, not the difference.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import families, jobs, scratch, step

LIMIT_SECONDS = 200
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4}
MEASURES = ("train_rollout/kl", "train/approx_kl", "train/clip_fraction", "train/grad_norm")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.router_replay")
    parser.add_argument(
        "--replays", nargs="+", choices=["none", "trainer", "rollout"], default=["none", "trainer", "rollout"]
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--samples", type=int, default=16, help="of a prompt")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("router_replay.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "router") as options.work:
        families.write(options.work / "model", "qwen3_moe", **EXPERTS)
        step.write_inputs(options.work)
        rows = jobs.record(options.out, (measure(replay, options) for replay in options.replays))
    return int(any(row["exit"] for row in rows))


def measure(replay: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each step."""
    ended = jobs.run(options.work, f"bench-{replay}", job(replay, options), options.steps, LIMIT_SECONDS)
    return jobs.rows_of_steps({"routerReplay": replay}, ended, options.steps, MEASURES)


def job(replay: str, options: argparse.Namespace) -> dict[str, Any]:
    root, gpu = options.work, options.device == "gpu"
    return {
        "model": {"path": str(root / "model"), "dtype": "bfloat16"},
        "data": {"train": [str(root / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(root / "reward.py")}}],
        "algorithm": {"rolloutCorrection": {"importanceSampling": "token", "routerReplay": replay}},
        "train": {
            "steps": options.steps + 1,
            "promptsPerStep": 8,
            "samplesPerPrompt": options.samples,
            "miniBatches": 2,
            "tokensPerMicroBatch": 8192,
            "optimizer": {"learningRate": 1e-4},
        },
        "trainer": {"device": options.device},
        "rollout": {
            "placement": "colocated",
            "sampling": {"maxTokens": 64},
            "vllmArgs": jobs.shared_gpu(0.15, 8) if gpu else {},
        },
        "checkpoint": {"path": str(root / f"run-{replay}"), "everySteps": 0, "exportHuggingFace": False},
    }


if __name__ == "__main__":
    sys.exit(main())
