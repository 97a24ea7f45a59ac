"""Training speed: the product's own training phase beside bare megatron-core on the same GPU, in the same run.

    python -m benchmarks.training [--gpus N] [--size NAME] [--layouts NAME,NAME] [--on-host float32|bfloat16] [--out FILE]

One GPU: configurations `torch` (Transformer Engine hidden from the process) and `te` where it is installed, each as a bare probe (probe.py)
and as the product, each in a process of its own. Two GPUs: the product as TP2, PP2, DP2 and CP2; a model with experts as EP2, and the probe likewise.
Prints a Markdown table; FILE gets the rows as JSON lines.

MFU = (6 x parameters that a token meets x tokens + 6 x layers x width x sum of squared lengths) / seconds / 989 TFLOP/s; embeddings count once.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.shapes import MODELS, PEAK_FLOPS, QWEN2_1_5B, Shape, model_of, shapes
from rljob_api import names
from rljob_api.sizing.layout import Layout
from rljob_trainer.machine import free_port
from rljob_trainer.rank import nccl

STEPS = 6
TOKENS = 16384
"""Of a micro-batch."""
LIMIT_SECONDS = 420
ONE_GPU: dict[str, dict[str, int]] = {"tp1": {}}
TWO_GPUS = {"tp2": {"tensor": 2}, "pp2": {"pipeline": 2}, "dp2": {}, "cp2": {"context": 2}}
EXPERTS = {"ep2": {"expert": 2}}
UNEVEN = {"pp2-16": {"pipeline": 2}, "pp2-8": {"pipeline": 2}}
SETTINGS = {name: {"num_layers_in_first_pipeline_stage": int(name.removeprefix("pp2-"))} for name in UNEVEN}
"""Of transformerConfig. 16 of 28 layers at 1.5 B, 8 of 14 at 7 B: the head of a large vocabulary costs the last stage as much as four, or two."""
COLUMNS = ("what", "configuration", "layout", "shape", "tokens_per_s", "mfu", "peak_gib", "of_probe")


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.training")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("training.jsonl"))
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--layouts", default="", help="comma-separated")
    parser.add_argument("--only", default="", help="configurations, comma-separated")
    parser.add_argument("--on-host", default="", help="the product's optimizer steps, with moments of this type")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        product(options.size, options.on_host, *options.worker)
        return 0
    model_of(options.size)
    rows: list[dict[str, Any]] = []
    for command, environment in runs(options):
        rows += run(command, environment)
        options.out.write_text(jobs.lines(compared(rows)))
    print(jobs.table(compared(rows), COLUMNS))
    return 0


def runs(options: argparse.Namespace) -> list[tuple[list[str], dict[str, str]]]:
    """Command and environment of every measurement."""
    found = []
    te = importlib.util.find_spec("transformer_engine") is not None
    for configuration in ("torch", "fused", "te"):
        if (configuration != "torch" and not te) or configuration not in (options.only or configuration).split(","):
            continue
        environment = hidden_engine() if configuration == "torch" else {}
        layouts = layouts_of(options)
        if options.gpus == 1 or "ep2" in layouts:
            probe = ["-m", "benchmarks.probe", configuration, "--size", options.size]
            found.append((torchrun(options.gpus) + probe, environment))
        if configuration == "fused":
            continue  # the product takes all of Transformer Engine where it is
        for layout in layouts:
            given = ["--size", options.size, "--on-host", options.on_host]
            worker = ["-m", "benchmarks.training", *given, "--worker", configuration, layout]
            found.append((torchrun(options.gpus) + worker, environment))
    return found


def layouts_of(options: argparse.Namespace) -> list[str]:
    """Those asked for, of those that number of GPUs and model have."""
    every = ONE_GPU if options.gpus == 1 else EXPERTS if "num_experts" in MODELS[options.size] else TWO_GPUS
    return [name for name in every if name in (options.layouts or name).split(",")]


def torchrun(gpus: int) -> list[str]:
    return ["-m", "torch.distributed.run", f"--nproc-per-node={gpus}", f"--master-port={free_port()}"]


def hidden_engine() -> dict[str, str]:
    """PYTHONPATH without the directories that hold Transformer Engine."""
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {"PYTHONPATH": os.pathsep.join(p for p in paths if not (Path(p) / "transformer_engine").is_dir())}


def run(command: list[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """The rows that a process printed; its last words when there are none."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    print(f"{' '.join(command)}: {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        print(done.stdout[-6000:], flush=True)
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the share of the probe's speed of the same configuration and shape."""
    probes = {(r["configuration"], r["shape"]): r["tokens_per_s"] for r in rows if r["what"] == "probe"}
    return [
        row | {"of_probe": round(row["tokens_per_s"] / probe, 3)}
        if row["what"] == "product" and (probe := probes.get((row["configuration"], row["shape"])))
        else row
        for row in rows
    ]


def product(size: str, on_host: str, configuration: str, layout: str) -> None:
    """One rank: measure the engine on every shape; rank 0 prints."""
    import torch.distributed as dist

    engine = start_engine(spec(model_of(size), layout, on_host=on_host))
    for shape in shapes().values():
        row = measure(engine, shape, sampled, MODELS[size])
        if dist.get_rank() == 0:
            settings = {"configuration": configuration, "layout": layout, "on_host": on_host}
            print(json.dumps({"what": "product"} | settings | row), flush=True)
    dist.destroy_process_group()


def start_rank() -> None:
    """Make a process that torchrun started what a rank of a job is, before it imports megatron."""
    import torch
    import torch.distributed as dist

    from rljob_trainer.megatron import compat

    compat.install()
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=120))


def start_engine(spec: Any) -> Any:
    """In a process that torchrun started."""
    nccl.choose_queues(Layout.of(spec, names.ROLE_TRAINER))
    start_rank()
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.rank.tasks import objective_of

    return Engine(spec, lambda: None, objective_of(spec))


def spec(model: Path, layout: str, tokens: int = TOKENS, on_host: str = "") -> Any:
    """`tokens`: of a micro-batch; `on_host`: optimizer steps are taken there, with moments of this type."""
    from rljob_api.spec import RLJobSpec

    parallelism = (ONE_GPU | TWO_GPUS | UNEVEN | EXPERTS)[layout]
    return RLJobSpec.model_validate(
        {
            "image": "none",
            "model": {"path": str(model), "dtype": "bfloat16"},
            "data": {"train": ["/none"], "maxPromptTokens": 256},
            "rewards": [{"rule": "exactMatch"}],
            "train": {
                "steps": 100,
                "promptsPerStep": 2,
                "samplesPerPrompt": 2,
                "tokensPerMicroBatch": tokens,
                "optimizer": {"momentsDtype": on_host or "float32"},
            },
            "trainer": {
                "processesPerNode": int(os.environ["WORLD_SIZE"]),
                "parallelism": parallelism,
                "offload": {"update": bool(on_host)},
                "transformerConfig": SETTINGS.get(layout, {}),
            },
            "rollout": {"sampling": {"maxTokens": 4096}},
            "checkpoint": {"path": "/tmp/none"},
        }
    )


def timed_step(engine: Any, made: Any) -> tuple[float, dict[str, float]]:
    """Seconds from the batch to the new parameters, and the metrics of the update."""
    synchronize()
    began = time.perf_counter()
    measured = engine.measure(made)
    metrics = engine.update(measured, engine.objective.advantages(measured))
    synchronize()
    return time.perf_counter() - began, metrics


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(
    engine: Any, shape: Shape, batch: Callable[[Shape, int], Any], model: dict[str, Any] = QWEN2_1_5B
) -> dict[str, Any]:
    """The best of STEPS steps after the first two, from the batch to the new parameters."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    metrics: dict[str, Any] = {}
    for step in range(1, STEPS + 3):
        seconds, metrics = timed_step(engine, batch(shape, step))
        times.append(seconds)
    best = min(times[2:])
    gpus = torch.distributed.get_world_size()
    return {
        "shape": shape.name,
        "tokens_per_s": round(shape.tokens / best / gpus),
        "mfu": round(shape.flops(model) / best / gpus / PEAK_FLOPS, 4),
        "seconds": [round(t, 4) for t in times],
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        "backend": engine.backend,
        **{name: metrics[f"train/{name}"] for name in ("loss", "grad_norm", "entropy") if f"train/{name}" in metrics},
    }


def sampled(shape: Shape, step: int, vocabulary: int = 150000) -> Any:
    """Groups of two, with rewards that differ; drawn by an older policy, so that nothing is compared."""
    import random

    from rljob_trainer.wire.batch import Batch
    from rljob_trainer.wire.trajectory import Trajectory

    tokens, prompt = random.Random(step), 100
    samples = [
        Trajectory.of_response(
            tokens.choices(range(1000, vocabulary), k=prompt),
            tokens.choices(range(1000, vocabulary), k=length + 1 - prompt),
            [-12.0] * (length + 1 - prompt),
            policy_step=step - 1,
            prompt_index=0,
            group=i // 2,
            sample=i % 2,
            finish_reason="stop",
            reward=float(i % 2),
            data_source="none",
        )
        for i, length in enumerate(shape.lengths)
    ]
    return Batch.of(step + 1, samples, {})


if __name__ == "__main__":
    sys.exit(main())
