"""Does training on a GPU resume bit for bit? Three steps, a save alongside training and one that is waited for, and a fourth step; then, in new
processes, each checkpoint and the fourth step again.

    python -m benchmarks.resume [--layout tp1|tp2|pp2|dp2|cp2] [--on-host bfloat16] [--deterministic] [--scratch DIR]

Two layers of the 1.5 B shape, on one GPU or, in another layout, two. Prints one JSON line for each of the fourth steps: loss, norm of the gradient,
and a digest of all exported weights. The uninterrupted run is made twice, because kernels that add in any order make two of them differ;
`--deterministic` asks megatron and Transformer Engine for others. Exits 1 when they differ.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import scratch, training
from benchmarks.shapes import QWEN2_1_5B, shapes, write_model

MODEL = scratch.SHARED / "rljob-bench-two-layers"
STEPS = 3
LIMIT_SECONDS = 600
SAVES = {"alongside": True, "waited": False}
DETERMINISTIC_ENVIRONMENT = {
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "NCCL_ALGO": "Ring",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
DETERMINISTIC_TOKENS = 2304
"""Of a micro-batch: the deterministic backward pass of attention takes 96 GiB for 16,384."""
SAME = ("loss", "grad_norm", "digest")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.resume")
    parser.add_argument("--layout", choices=[*training.ONE_GPU, *training.TWO_GPUS], default="tp1")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--on-host", default="", help="optimizer steps are taken there, with moments of this type")
    parser.add_argument("--scratch", type=Path, help="where the checkpoint goes; a temporary directory otherwise")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        scratch, layout, which = options.worker
        work(Path(scratch), layout, which, options.on_host, options.deterministic)
        return 0
    write_model(MODEL, QWEN2_1_5B | {"num_hidden_layers": 2})
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        rows = [run(scratch, options, which) for which in ("uninterrupted", "again", *SAVES)]
    return int(any(row[name] != rows[0][name] for row in rows for name in SAME))


def run(scratch: str, options: argparse.Namespace, which: str) -> dict[str, Any]:
    gpus = 1 if options.layout in training.ONE_GPU else 2
    command = [sys.executable, *training.torchrun(gpus), "-m", "benchmarks.resume", "--worker"]
    command += [scratch, options.layout, which, "--on-host", options.on_host]
    command += ["--deterministic"] if options.deterministic else []
    environment = os.environ | (DETERMINISTIC_ENVIRONMENT if options.deterministic else {})
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    print(line, flush=True)
    return json.loads(line)


def work(scratch: Path, layout: str, which: str, on_host: str, deterministic: bool) -> None:
    """One rank: up to the fourth step, from the beginning or from a checkpoint."""
    import torch.distributed as dist

    tokens = DETERMINISTIC_TOKENS if deterministic else training.TOKENS
    spec = training.spec(MODEL, layout, tokens, on_host)
    if deterministic:
        spec.trainer.transformer_config["deterministic_mode"] = True
    engine = training.start_engine(spec)
    engine.prepare_save()
    began = time.monotonic()
    if which in SAVES:
        engine.load(scratch / which)
    else:
        for step in range(1, STEPS + 1):
            train(engine, step)
        for name, alongside in SAVES.items() if which == "uninterrupted" else ():
            save(engine, scratch / name, alongside)
    row = {"layout": layout, "which": which, "seconds": round(time.monotonic() - began, 1)} | train(engine, STEPS + 1)
    row["digest"] = digest(engine)
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def save(engine: Any, directory: Path, alongside: bool) -> None:
    from rljob_trainer.checkpoint.saving import CheckpointPart
    from rljob_trainer.wire.collective import Ranks

    part = CheckpointPart(engine, Ranks(LIMIT_SECONDS))
    part.begin(STEPS, directory, alongside)
    part.complete(wait=True)


def train(engine: Any, step: int) -> dict[str, float]:
    measured = engine.measure(training.sampled(shapes()["packed"], step))
    metrics = engine.update(measured, engine.objective.advantages(measured))
    return {"loss": metrics["train/loss"], "grad_norm": metrics["train/grad_norm"]}


def digest(engine: Any) -> str:
    import torch

    found = hashlib.sha256()
    for name, tensor in engine.export():
        found.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
