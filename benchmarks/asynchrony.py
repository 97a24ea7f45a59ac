"""Generation ahead of training: tokens a second with staleness 0, 1 and 2, and what each side reaches alone, with the product's own command.

    python -m benchmarks.asynchrony [--runs alone 0 1 2 1-wait] [--steps 8] [--prompts 64] [--size 1.5b] [--out FILE] [--work DIR]

Trainer and rollout have a GPU each. A step is `--prompts` x 8 samples: prompts of 128 to 256 tokens, responses of up to 2,048, which end with a
probability of 1/1000 at every token (so many of the random model's ids end one): 870 on average, an eighth is cut off. A run is the product's
command on a job of its own: a number is `train.staleness`, with `rollout.interrupt: continue` above 0, `1-wait` with `wait`. `alone` is one step
of 4 times as many prompts: its `time/generate` is the rollouts' own rate, its `time/train` the trainer's.

Rates are of tokens of prompts and responses, over `--steps` steps after the first two; two more follow, so that as much is under way at the end of
what is measured as at its beginning. Each run appends a JSON line to FILE; a table of all of its lines is printed at the end. About 2 to 4 minutes a
run, of which 1 to 1.5 are the start of vLLM.
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

from benchmarks import jobs, scratch, step
from benchmarks.shapes import MODELS, model_of

RUNS = ("alone", "0", "1", "2", "1-wait", "4")
BEFORE, BEHIND, ALONE, END = 2, 2, 4, 1000
COLUMNS = ("run", "tokens_per_s", "of_slower_side", "starved", "generate", "train", "sync", "age", "begun_age", "ess")
GENERATION = "generation_config.json"
TIMES = ("time/step", "time/starved", "time/generate", "time/train", "time/sync")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.asynchrony")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["alone", "0", "1", "2"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("asynchrony.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "asynchrony") as options.work:
        model, data = prepared(options)
        codes = [measured(options, run, model, data) for run in options.runs]
    print(table(with_share([json.loads(line) for line in options.out.read_text().splitlines()])))
    return max(codes)


def prepared(options: argparse.Namespace) -> tuple[Path, Path]:
    """Directories of a model whose responses end, which has the weights of the shared one, and of its data."""
    model, data = options.work / f"model-{options.size}", options.work / "data"
    scratch.link(model_of(options.size), model, (GENERATION,))
    step.write_inputs(data, "mixed")
    ends = max(1, MODELS[options.size]["vocab_size"] // END)
    (model / GENERATION).write_text(json.dumps({"eos_token_id": list(range(20, 20 + ends))}))
    return model, data


def measured(options: argparse.Namespace, run: str, model: Path, data: Path) -> int:
    """Run it and append its line; the exit status."""
    root = data / "run"
    shutil.rmtree(root, ignore_errors=True)
    manifest = options.work / f"{run}.yaml"
    manifest.write_text(yaml.safe_dump(job(options, run, model, data)))
    command = [sys.executable, "-m", "rljob_trainer", "run", str(manifest), "--work", str(options.work / f"logs-{run}")]
    began = time.monotonic()
    code = subprocess.run(command).returncode
    log = root / "metrics.jsonl"
    rows = jobs.rows_of(log)
    trained = {n: row for n, row in rows.items() if "train/tokens" in row}
    line = {"run": run, "exit": code, "seconds": round(time.monotonic() - began, 1)} | figures(options, run, trained)
    with options.out.open("a") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    return code


def figures(options: argparse.Namespace, run: str, rows: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Rates in tokens a second; the others are means over the measured steps."""
    of = [rows[n] for n in sorted(rows) if run == "alone" or BEFORE < n <= BEFORE + options.steps]
    if not of:
        return {}
    tokens, seconds = sum(row["train/tokens"] for row in of), {t: sum(row.get(t, 0.0) for row in of) for t in TIMES}
    if run == "alone":
        rates = {"rollout": tokens / seconds["time/generate"], "trainer": tokens / seconds["time/train"]}
        return {name: round(rate) for name, rate in rates.items()}
    named = {"age": "train_rollout/policy_age", "begun_age": "train_rollout/begun_age"}
    named |= {"ess": "train_rollout/effective_sample_size", "length": "response_length/mean"}
    return {
        "tokens_per_s": round(tokens / seconds["time/step"]),
        "steps": len(of),
        **{name.removeprefix("time/"): round(total / len(of), 2) for name, total in seconds.items()},
        **{name: round(sum(row.get(metric, 0.0) for row in of) / len(of), 3) for name, metric in named.items()},
    }


def with_share(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the share of what the slower side reaches alone."""
    alone = [min(line["rollout"], line["trainer"]) for line in lines if "rollout" in line]
    if not alone:
        return lines
    return [
        line | {"of_slower_side": round(line["tokens_per_s"] / alone[-1], 3)} if "tokens_per_s" in line else line
        for line in lines
    ]


def table(lines: list[dict[str, Any]]) -> str:
    said = [f"alone: rollout {line['rollout']}, trainer {line['trainer']}" for line in lines if "rollout" in line]
    return "\n".join([*said, jobs.table([line for line in lines if "rollout" not in line], COLUMNS)])


def job(options: argparse.Namespace, run: str, model: Path, data: Path) -> dict[str, Any]:
    alone, (staleness, _, wait) = run == "alone", run.partition("-")
    ahead = 0 if alone else int(staleness)
    prompts = options.prompts * (ALONE if alone else 1)
    gpu = {"gpu-memory-utilization": 0.9} if options.device == "gpu" else {}
    spec = {
        "image": "none",
        "model": {"path": str(model), "dtype": "bfloat16" if options.device == "gpu" else "float32"},
        "data": {"train": [str(data / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(data / "reward.py")}}],
        "algorithm": {"advantage": "grpo"} | ({"rolloutCorrection": {"importanceSampling": "token"}} if ahead else {}),
        "train": {
            "steps": 1 if alone else BEFORE + options.steps + BEHIND,
            "promptsPerStep": prompts,
            "samplesPerPrompt": step.SAMPLES,
            "staleness": ahead,
            "tokensPerMicroBatch": 16384,
        },
        "trainer": {"device": options.device},
        "rollout": {
            "replicas": 1,
            "sampling": {"maxTokens": options.max_tokens},
            "interrupt": "continue" if ahead and not wait else "wait",
            "vllmArgs": gpu,
        },
        "checkpoint": {"path": str(data / "run"), "everySteps": 0, "exportHuggingFace": False},
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": f"bench-{run}"}, "spec": spec}


if __name__ == "__main__":
    sys.exit(main())
