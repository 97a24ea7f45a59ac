"""A whole job that trains an EAGLE-3 draft with its policy (`rollout.speculation.learningRate`), with a server on a GPU of its own.

    python -m benchmarks.drafts [--without] [--prompts N] [--device gpu|cpu] [--layers N] [--width N] [--steps N] [--limit SECONDS] [--out FILE]

The policy is that of `benchmarks.guesses`: its next token depends on the last one alone, so that a draft can learn to guess it; 28 layers as wide
as Qwen2.5-1.5B by default. The draft begins with random weights. Prints for each step the tokens/s and the mean length of responses, the tokens
that a pass gave, the share of first guesses that were right, the draft's loss, seconds of generation, and the difference between the log-
probabilities of trainer and server: a server that accepted guesses of another policy, or had another draft than it was sent, would show there.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks import guesses, jobs, scratch, step
from benchmarks.shapes import tokenizer

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from trainer.drafts import make_draft
from trainer.server import models, test_speculation

LAYERS_READ = 3
POLICY_RATE = 1e-9
"""Of learning. So steep a policy ends its responses at other lengths after a few steps with 1e-6, and runs could not be compared."""
MORE = (
    "rollout/tokens_per_s",
    "response_length/mean",
    "rollout/acceptance_length",
    "train/draft_accuracy",
    "train/draft_loss",
    "train_rollout/probe_diff_mean",
)


def main() -> int:
    options = parser().parse_args()
    with scratch.directory(options.work, "drafts") as options.work:
        model, draft = write(options)
        spec = job(options, model, draft)
        ended = jobs.run(options.work, "bench-drafts", spec, options.steps, options.limit)
    asked = {"layers": options.layers, "prompts": options.prompts, "guesses": not options.without}
    jobs.record(options.out, [jobs.rows_of_steps(asked, ended, options.steps, MORE)])
    return ended.code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.drafts")
    made.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    made.add_argument("--layers", type=int, default=guesses.WIDE["num_hidden_layers"])
    made.add_argument("--width", type=int, default=guesses.WIDE["hidden_size"])
    made.add_argument("--steps", type=int, default=12)
    made.add_argument("--without", action="store_true", help="the same job without guesses, to compare with")
    made.add_argument("--prompts", type=int, default=8, help="of a step, with 8 responses each")
    made.add_argument("--limit", type=float, default=300, help="seconds")
    made.add_argument("--out", type=Path, default=Path("drafts.jsonl"))
    made.add_argument("--work", type=Path, help=scratch.HELP)
    return made


def write(options: argparse.Namespace) -> tuple[Path, Path]:
    """The policy and its draft, prompts and a reward."""
    shape = guesses.WIDE | {"hidden_size": options.width, "num_hidden_layers": options.layers}
    model = test_speculation.repeating(options.work / "policy", 1, **shape)
    read = [options.layers * (i + 1) // (LAYERS_READ + 1) for i in range(LAYERS_READ)]
    draft = make_draft(options.work / "draft", options.width, models.VOCABULARY, read)
    tokenizer(model, models.VOCABULARY)
    step.write_inputs(options.work / "data")
    return model, draft


def job(options: argparse.Namespace, model: Path, draft: Path) -> dict[str, Any]:
    gpu, data = options.device == "gpu", options.work / "data"
    learning = {"method": "eagle3", "draft": str(draft), "tokens": 3, "learningRate": 1e-3}
    return {
        "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"},
        "data": {"train": [str(data / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(data / "reward.py")}}],
        "algorithm": {"advantage": "grpo"},
        "train": {
            "steps": options.steps + 1,
            "promptsPerStep": options.prompts,
            "samplesPerPrompt": step.SAMPLES,
            "miniBatches": math.gcd(4, options.prompts),
            "optimizer": {"learningRate": POLICY_RATE},
        },
        "trainer": {"device": options.device, "processesPerNode": 1},
        "rollout": {
            "placement": "separate",
            "vllmArgs": {"gpu-memory-utilization": 0.4} if gpu else {},
            "sampling": {"maxTokens": 128, "temperature": test_speculation.SAMPLING.temperature},
        }
        | ({} if options.without else {"speculation": learning}),
        "checkpoint": {"path": str(data / "run"), "everySteps": 0, "exportHuggingFace": False},
    }


if __name__ == "__main__":
    sys.exit(main())
