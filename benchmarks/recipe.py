"""Does an unchanged recipe learn against a service? tinker-cookbook's math_rl, `env=arithmetic`, on this machine.

    python -m benchmarks.recipe [SEEDS] [--steps 60] [--groups 16] [--samples 16] [--out FILE]

The model is small and was taught by a careless teacher first: it knows the recipe's chat, and writes 65 % of its sums backwards, as that of
examples/arithmetic does. The recipe then trains adapters of rank 16, each step with GROUPS x SAMPLES samples. Seeds are those of the starting model,
its warm-up and the samples: the recipe draws the same problems with each.

Prints for each seed the share of right answers in the first and last 10 steps. Exits 1 when one rose by less than 0.2. FILE gets a line of JSON for
each seed: the share of every step.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks.learning import RISES, call
from benchmarks.service import serving
from e2e.job import EXAMPLES
from rljob_trainer.conversion.sets import Problem, write_problems
from trainer.gateway.recipes import NAME, execute, metrics, save_model

RANK, LEARNING_RATE = 16, 2e-3
LARGEST = 100
"""Term of a sum."""
WORDS = ("user\n", "assistant\n", "What is ", " + ")
PROMPT = (
    "<|im_start|>user\nWhat is 4 + 5?<|im_end|>\n<|im_start|>assistant\n9<|im_end|>\n"
    "<|im_start|>user\nWhat is {} + {}?<|im_end|>\n<|im_start|>assistant\n"
)
"""The recipe's, with its example."""
WARM_UP_STEPS = 120
MOST_TOKENS = 64
SECONDS = 3600


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.recipe")
    parser.add_argument("seeds", type=int, nargs="?", default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print("seed   right, first 10   last 10    rise   seconds of a step")
    return int(min(learn(seed, options) for seed in range(options.seeds)) < RISES["arithmetic"])


def learn(seed: int, options: argparse.Namespace) -> float:
    """Prepare, train, print a row; the rise of the share of right answers."""
    with tempfile.TemporaryDirectory() as scratch:
        world = Path(scratch)
        prepare(world, seed)
        with serving(manifest(), world) as url:
            execute(url, world, world / "log", SECONDS, "math_rl.train", *arguments(options))
        right, seconds = metrics(world / "log", "env/all/correct"), metrics(world / "log", "time/total")
    if options.out:
        with options.out.open("a") as lines:
            lines.write(json.dumps({"seed": seed, "right": right}) + "\n")
    first, last = mean(right[:10]), mean(right[-10:])
    print(f"{seed:4d} {first:17.3f} {last:9.3f} {last - first:7.3f} {mean(seconds):19.2f}", flush=True)
    return last - first


def arguments(options: argparse.Namespace) -> list[str]:
    """Of the recipe."""
    sizes = [f"groups_per_batch={options.groups}", f"group_size={options.samples}", f"max_steps={options.steps}"]
    rates = [f"lora_rank={RANK}", f"learning_rate={LEARNING_RATE}", "loss_fn=importance_sampling"]
    return ["env=arithmetic", "max_tokens=5", "eval_every=0", "save_every=0", *sizes, *rates]


def prepare(world: Path, seed: int) -> None:
    """Put the model into `world`, under the name by which the recipe knows it."""
    start = world / "untrained"
    save_model(start, WORDS, seed, hidden_size=128, intermediate_size=256, initializer_range=0.06)
    sums = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    right = [Problem(PROMPT.format(a, b), str(a + b), "arithmetic") for a, b in sums]
    (world / "data").mkdir()
    write_problems(right, world / "data/train.parquet")
    write_problems([p._replace(answer=p.answer[::-1]) for p in right], world / "data/backwards.parquet")
    steps = [f"{field}={WARM_UP_STEPS}" for field in ("train.steps", "checkpoint.everySteps")]
    given = ("data.maxTokens=48", "train.tokensPerMicroBatch=4096", f"data.seed={seed}", *steps)
    settings = [f"--set={setting}" for setting in given]
    call("-m", "rljob_trainer", "run", str(EXAMPLES / "arithmetic/warm-up.yaml"), f"--mount=/data={world}", *settings)
    (export,) = world.glob("warm-up/*/huggingface")
    (world / NAME).parent.mkdir()
    export.rename(world / NAME)
    shutil.rmtree(world / "warm-up")


def manifest() -> dict[str, Any]:
    """Of a service of the recipe's model."""
    service: dict[str, Any] = yaml.safe_load((EXAMPLES / "service/service.yaml").read_text())
    service["spec"]["model"]["path"] = f"/data/{NAME}"
    service["spec"]["service"] = {"name": NAME, "maxTokens": MOST_TOKENS, "maxRank": RANK}
    return service


if __name__ == "__main__":
    sys.exit(main())
