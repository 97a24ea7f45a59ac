"""A whole GRPO step with real vLLM: the product's own command on a job of the Qwen2.5-1.5B shape with random weights.

    python -m benchmarks.step [--placement separate|colocated] [--lengths fixed|mixed] [--staleness 0|1] [--size NAME] [--gpus N]
        [--tensor N] [--expert N] [--lora RANK] [--quantization NAME] [--prompts N] [--steps N] [--out FILE]

64 prompts (or `--prompts`) x 8 samples, 256 tokens of prompt and 1,024 of response (`mixed`: prompts of 128 to 256, responses of up to 2,048), GRPO
without KL, one mini-batch. `--gpus N`: of the trainer; `--tensor N`: tensor parallelism of trainer and servers; `--expert N`: expert parallelism of
the trainer; `--lora RANK`: adapters are trained in place of all weights. Random weights hardly ever end a response, so its length is maxTokens, and
rewards are as good as random: gradients must not be zero, on which a GPU multiplies faster. Prints the split of the steps and writes it as JSON.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shapes import MODELS, model_of

SAMPLES = 8
SPLIT = ("time/step", "time/generate", "time/train", "time/sync", "time/save", "perf/tokens_per_s")
AGREEMENT = ("train_rollout/log_prob_diff_mean", "train_rollout/log_prob_diff_max")
LIMIT_SECONDS = 560
REWARD = """
def reward(prompt: str, response: str, answer: str) -> float:
    return float(len(response) % 2)
"""


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.step")
    parser.add_argument("--placement", choices=["separate", "colocated"], default="separate")
    parser.add_argument("--lengths", choices=["fixed", "mixed"], default="fixed")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--gpus", type=int, default=1, help="of the trainer")
    parser.add_argument("--tensor", type=int, default=1, help="tensor parallelism of trainer and servers")
    parser.add_argument("--expert", type=int, default=1, help="expert parallelism of the trainer")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all weights are trained")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--quantization", default="", help="of vLLM: fp8, for example")
    parser.add_argument("--staleness", type=int, choices=[0, 1], default=0)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("step.json"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rljob-bench-step")
    options = parser.parse_args()
    data = options.work / "data"
    model = model_of(options.size)
    tokenizer(model, MODELS[options.size]["vocab_size"])
    prompts(data / "train.parquet", options.lengths)
    (data / "reward.py").write_text(REWARD)
    manifest = options.work / "rljob.yaml"
    manifest.write_text(yaml.safe_dump(job(options, model, data)))
    began = time.monotonic()
    command = [sys.executable, "-m", "rljob_trainer", "run", str(manifest), "--work", str(options.work / "logs")]
    code = subprocess.run(command, timeout=LIMIT_SECONDS).returncode
    log = data / "run" / "metrics.jsonl"
    rows = by_step(log.read_text()) if log.exists() else {}
    result = {
        "placement": options.placement,
        "size": options.size,
        "gpus": options.gpus,
        "tensor": options.tensor,
        "expert": options.expert,
        "lora": options.lora,
        "prompts": options.prompts,
        "quantization": options.quantization,
        "lengths": options.lengths,
        "staleness": options.staleness,
        "exit": code,
        "seconds": round(time.monotonic() - began, 1),
        "steps": {step: {k: round(v[k], 4) for k in SPLIT + AGREEMENT if k in v} for step, v in rows.items()},
        "metrics": rows.get(max(rows)) if rows else None,
    }
    options.out.write_text(json.dumps(result, indent=1))
    print(table(result["steps"]))
    return code


def by_step(log: str) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for line in log.splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("step"), {}).update(row)
    return found


def table(steps: dict[int, dict[str, float]]) -> str:
    head = ["step", *SPLIT, *AGREEMENT]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(
        lines + [f"| {n} | " + " | ".join(str(s.get(k, "")) for k in head[1:]) + " |" for n, s in steps.items()]
    )


def tokenizer(model: Path, size: int) -> None:
    """A token per digit, and a name for every other id of the model."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate("0123456789")}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), size - 1)}
    vocabulary["<eos>"] = len(vocabulary)
    digits = Tokenizer(models.WordLevel(vocabulary))
    digits.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=digits, eos_token="<eos>").save_pretrained(model)


def prompts(file: Path, lengths: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.parent.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    sizes = [256 if lengths == "fixed" else draw.randint(128, 256) for _ in range(1024)]
    texts = ["".join(draw.choices("0123456789", k=size)) for size in sizes]
    pq.write_table(
        pa.table({"prompt": texts, "answer": ["1"] * len(texts), "data_source": ["none"] * len(texts)}), file
    )


def job(options: argparse.Namespace, model: Path, data: Path) -> dict[str, Any]:
    colocated = {"placement": "colocated"}
    correction = {"rolloutCorrection": {"importanceSampling": "token"}} if options.staleness else {}
    placement = colocated if options.placement == "colocated" else {"replicas": 1}
    lora = {"lora": {"rank": options.lora, "alpha": options.lora}} if options.lora else {}
    extra = {"quantization": options.quantization} if options.quantization else {}
    share = 0.9 if options.placement == "separate" else 0.45 if options.size in ("0.1b", "1.5b", "14b") else 0.3
    spec = {
        "image": "none",
        "model": {"path": str(model), "dtype": "bfloat16"} | lora,
        "data": {"train": [str(data / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(data / "reward.py")}}],
        "algorithm": {"advantage": "grpo"} | correction,
        "train": {
            "steps": options.steps,
            "promptsPerStep": options.prompts,
            "samplesPerPrompt": SAMPLES,
            "staleness": options.staleness,
            "tokensPerMicroBatch": 16384 if options.size == "1.5b" else 8192,
        },
        "trainer": {
            "device": "gpu",
            "processesPerNode": options.gpus,
            "parallelism": {"tensor": options.tensor, "expert": options.expert},
        },
        "rollout": {
            "sampling": {"maxTokens": 1024 if options.lengths == "fixed" else 2048},
            "tensorParallel": options.tensor,
            "vllmArgs": {"gpu-memory-utilization": share} | extra,
        }
        | placement,
        "checkpoint": {"path": str(data / "run"), "everySteps": 0, "exportHuggingFace": False},
    }
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "bench-step"},
        "spec": spec,
    }


if __name__ == "__main__":
    sys.exit(main())
