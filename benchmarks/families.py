"""Every family of models of text on a GPU, with real vLLM: three GRPO steps of `python -m rljob_trainer run`, colocated, on a small random model.

    python -m benchmarks.families [--kinds 'NAME;NAME'] [--gpus N] [--jobs N] [--lora RANK] [--device gpu] [--limit SECONDS] [--out FILE]

Small, with heads and widths that kernels of GPUs are made for. Prints for each the difference between the log-probabilities of trainer and
vLLM, mean and largest, in bfloat16, and what the job said at its end. `--jobs` of them share a GPU at a time. Families of `--kinds` may be those
whose generation on GPUs is not proven yet.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks import jobs, scratch, step, unproven
from benchmarks.shapes import tokenizer

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from rljob_api.families import FAMILIES
from trainer.megatron.kinds import KINDS, SHAPE, config_class
from trainer.megatron.models import random_model

VOCABULARY = 1024
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "head_dim": 64,
    "rotary_dim": 32,
    "moe_intermediate_size": 256,
    "sliding_window": 64,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "query_pre_attn_scalar": 64,
    "q_lora_rank": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "index_head_dim": 128,
    "index_topk": 512,
}
"""In place of those of a kind, where it has them."""
LIMIT_SECONDS = 240
SHARE, CACHE_GIB = 0.4, 4
"""Of a GPU, for the servers of all jobs on it; of a server that shares it."""


def main() -> int:
    options = parser().parse_args()
    devices: SimpleQueue[int] = SimpleQueue()
    for number in range(options.gpus * options.jobs):
        devices.put(number % options.gpus)
    with scratch.directory(options.work, "families") as root, ThreadPoolExecutor(options.gpus * options.jobs) as pool:
        models = {kind: write(root / kind.replace(", ", "-") / "model", kind) for kind in chosen(options)}
        rows = list(pool.map(lambda kind: measure(kind, models[kind], options, devices), models))
    options.out.write_text(jobs.lines(rows))
    print(jobs.table(rows))
    return int(any(row["exit"] for row in rows))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.families")
    parser.add_argument(
        "--kinds", default="", help="of tests/trainer/megatron/kinds.py; every family that generates otherwise"
    )
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="at a time on a GPU")
    parser.add_argument(
        "--lora", type=int, default=0, help="rank of adapters, for families that take them; 0: all weights are trained"
    )
    parser.add_argument(
        "--tokens", type=int, default=64, help="of a response; sparse attention chooses among more than 512"
    )
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds of a job")
    parser.add_argument("--out", type=Path, default=Path("families.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    return parser


def chosen(options: argparse.Namespace) -> list[str]:
    every = [
        name for name, f in FAMILIES.items() if "gpu" in f.servers and not f.vision and (f.adapters or not options.lora)
    ]
    return options.kinds.split(";") if options.kinds else every


def measure(kind: str, model: Path, options: argparse.Namespace, devices: "SimpleQueue[int]") -> dict[str, Any]:
    device = devices.get()
    try:
        row = {"kind": kind, "lora": options.lora} | train(model, options, device)
    finally:
        devices.put(device)
    print(json.dumps(row), flush=True)
    return row


def train(model: Path, options: argparse.Namespace, device: int) -> dict[str, Any]:
    """A job from beginning to end. One that is late is stopped."""
    root, name = model.parent, "bench-family"
    step.write_inputs(root)
    process = jobs.start(root, name, job(root, options), device, unproven.PRODUCT)
    try:
        code, late = process.wait(options.limit), []
    except subprocess.TimeoutExpired:
        code, late = jobs.stop(process) or 1, ["not at its end:"]
    if code:
        print("\n".join(jobs.tails(root / f"logs-{name}", root / "run")), flush=True)
    said = (root / f"{name}.out").read_text().strip().splitlines()[-12 if code else -1 :]
    rows = jobs.rows_of(root / "run" / "metrics.jsonl")
    return (
        {"exit": code, "steps": jobs.trained(rows)} | jobs.worst(rows.values()) | {"said": " ".join(late + said)[:1500]}
    )


def write(directory: Path, kind: str, **changes: int) -> Path:
    """A random model of that kind in bfloat16."""
    name, more = KINDS[kind]
    values = SHAPE | {"num_hidden_layers": 4} | more | changes
    values |= {key: size for key, size in SIZES.items() if values.get(key) is not None}
    if "kv_lora_rank" in values:
        values["num_key_value_heads"] = values["num_attention_heads"]
    if "factor" in values.get("rope_parameters", {}):
        original = values["max_position_embeddings"] // values["rope_parameters"]["factor"]
        values["rope_parameters"] |= {"original_max_position_embeddings": int(original)}
    values |= {"vocab_size": VOCABULARY, "eos_token_id": VOCABULARY - 1, "tie_word_embeddings": kind == "gemma3_text"}
    values["pad_token_id"] = (
        None  # its embedding is zero, and it is a digit of the prompts: a prompt that begins with it has no gradient
    )
    config = config_class(name)(**values)
    random_model(config, seed=1).to(torch.bfloat16).save_pretrained(directory)
    tokenizer(directory, VOCABULARY)
    return directory


def job(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    lora = {"lora": {"rank": options.lora, "alpha": options.lora}} if options.lora else {}
    return {
        "model": {"path": str(root / "model")} | lora,
        "data": {"train": [str(root / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(root / "reward.py")}}],
        "algorithm": {"advantage": "grpo"},
        "train": {"steps": 3, "promptsPerStep": 16, "samplesPerPrompt": 4, "optimizer": {"learningRate": 1e-4}},
        "trainer": {"device": options.device, "processesPerNode": 1},
        "rollout": {
            "placement": "colocated",
            "sampling": {"maxTokens": options.tokens},
            "vllmArgs": arguments(options),
        },
        "lifecycle": {"maxRestarts": 0},
        "checkpoint": {"path": str(root / "run"), "everySteps": 0, "exportHuggingFace": False},
    }


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """A server's."""
    if options.device == "cpu":
        return {}
    shared = jobs.shared_gpu(round(SHARE / options.jobs, 2), CACHE_GIB)  # by the jobs of a queue, too
    eager = {"enforce-eager": True} if options.jobs > 1 else {}
    return shared | eager | {"gdn-prefill-backend": "triton"}  # as the rules want it


if __name__ == "__main__":
    sys.exit(main())
