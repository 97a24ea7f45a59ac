"""Does a layout over two GPUs train like one GPU? The same batches through both, with Transformer Engine where it is installed.

    python -m benchmarks.parity [--layouts tp2,pp2,cp2,dp2,ep2] [--types float32,bfloat16] [--steps 3] [--out FILE]

Small models (4 layers, width 512; `ep2`: 8 experts), two optimizer steps a batch, KL and entropy in the loss. Prints for each layout the largest
difference from one GPU of the loss and, relative to it, of the gradient's norm, over all steps. Types run one after the other, layouts at once.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import jobs, scratch, training
from benchmarks.shapes import QWEN2_1_5B, QWEN3_30B_A3B, Shape, write_model

SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
MODELS = {
    "dense": QWEN2_1_5B | SMALL | {"intermediate_size": 1024},
    "experts": QWEN3_30B_A3B
    | SMALL
    | {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
}
LAYOUTS: dict[str, tuple[str, dict[str, int]]] = {
    "tp2": ("dense", {"tensor": 2}),
    "pp2": ("dense", {"pipeline": 2}),
    "cp2": ("dense", {"context": 2}),
    "dp2": ("dense", {}),
    "ep2": ("experts", {"expert": 2}),
    "tp2-experts": ("experts", {"tensor": 2}),
}
"""Model and parallelism of each, on two GPUs."""
WITHOUT = {("cp2", "float32")}
"""Transformer Engine has no attention for it."""
SHAPE = Shape("parity", (300, 500, 200, 900, 640, 250, 410, 730), 2048)
COMPARED = ("loss", "grad_norm")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.parity")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("parity.jsonl"))
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.steps, *options.worker)
        return 0
    root = scratch.SHARED / "rljob-bench-parity"
    for name, shape in MODELS.items():
        write_model(root / name, shape)
    rows = [row for dtype in options.types.split(",") for row in compare(root, dtype, options)]
    options.out.write_text(jobs.lines(rows))
    print(jobs.table(rows, ("type", "layout", *COMPARED)))
    return 0


def compare(root: Path, dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each layout."""
    chosen = [name for name in options.layouts.split(",") if (name, dtype) not in WITHOUT]
    layouts = {name: LAYOUTS[name] for name in chosen}
    wanted: list[tuple[int, str, dict[str, int]]] = [
        (1, model, {}) for model in sorted({model for model, _ in layouts.values()})
    ]
    wanted += [(2, model, cut) for model, cut in layouts.values()]
    with ThreadPoolExecutor(len(wanted)) as pool:
        found = list(pool.map(lambda w: trained(root, dtype, options.steps, *w), wanted))
    alone = {model: steps for (gpus, model, _), steps in zip(wanted, found, strict=True) if gpus == 1}
    cut = found[len(alone) :]
    return [
        {"type": dtype, "layout": name} | differences(steps, alone[model])
        for (name, (model, _)), steps in zip(layouts.items(), cut, strict=True)
    ]


def differences(steps: list[dict[str, float]], alone: list[dict[str, float]]) -> dict[str, Any]:
    """The largest of all steps; the gradient's relative to its norm."""
    pairs = list(zip(steps, alone, strict=True))
    return {
        "loss": f"{max(abs(a['loss'] - b['loss']) for a, b in pairs):.1e}",
        "grad_norm": f"{max(abs(a['grad_norm'] / b['grad_norm'] - 1) for a, b in pairs):.1e}",
        "steps": steps,
        "alone": alone,
    }


def trained(root: Path, dtype: str, steps: int, gpus: int, model: str, cut: dict[str, int]) -> list[dict[str, float]]:
    """Metrics of each step on `gpus` GPUs."""
    worker = ["-m", "benchmarks.parity", "--steps", str(steps), "--worker", str(root / model), model, dtype]
    command = [sys.executable, *training.torchrun(gpus), *worker, json.dumps(cut)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"{gpus} GPUs, {model}, {dtype}, {cut}:\n{done.stdout[-6000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def work(steps: int, directory: str, model: str, dtype: str, cut: str) -> None:
    """One rank; rank 0 prints a line for each step."""
    import torch.distributed as dist

    engine = training.start_engine(spec(directory, dtype, json.loads(cut)))
    for step in range(1, steps + 1):
        _, metrics = training.timed_step(engine, training.sampled(SHAPE, step))
        if dist.get_rank() == 0:
            print(json.dumps({name: metrics[f"train/{name}"] for name in COMPARED}), flush=True)
    dist.destroy_process_group()


def spec(directory: str, dtype: str, parallelism: dict[str, int]) -> Any:
    import torch

    from rljob_api.spec import RLJobSpec

    raw = training.spec(Path(directory), "tp1").model_dump(by_alias=True, exclude_defaults=True)
    raw["model"]["dtype"] = dtype
    raw["algorithm"] = {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01}
    raw["train"] |= {
        "promptsPerStep": 4,
        "miniBatches": 2,
        "tokensPerMicroBatch": SHAPE.tokens_per_micro_batch,
        "optimizer": {"learningRate": 1e-4, "epsilon": 1e-6},
    }
    raw["trainer"] = {"processesPerNode": int(os.environ["WORLD_SIZE"]), "parallelism": parallelism}
    raw["trainer"]["device"] = "gpu" if torch.cuda.is_available() else "cpu"
    return RLJobSpec.model_validate(raw)


if __name__ == "__main__":
    sys.exit(main())
