"""What `trainer.overlap` gains with data parallelism: off, gradReduce, gradReduce and paramGather, by turns on the same ranks.

    torchrun --nproc-per-node N -m benchmarks.overlap [--tokens 16384] [--mini-batches 1] [--rounds 2] [--steps 3] [--model DIR]

The product's own training phase on 64 sequences of 200 to 2,000 tokens, in micro-batches of `--tokens`; paramGather only with several mini-batches,
without which it overlaps nothing. The engines share the GPUs and take turns, so that machine and moment are the same for all. Rank 0 prints a JSON
line per round and setting: the best of `--steps` steps after the first.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import training
from benchmarks.shapes import MODEL, Shape, shapes, write_model

SETTINGS = {
    "off": {"gradReduce": False, "paramGather": False},
    "gradReduce": {"gradReduce": True, "paramGather": False},
    "gradReduce + paramGather": {"gradReduce": True, "paramGather": True},
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.overlap")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--mini-batches", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    engines = start(options)
    shape = shapes()["packed"]
    for turn in range(1, options.rounds + 1):
        for setting, engine in engines.items():
            row = {"setting": setting, "round": turn} | measure(engine, shape, options.steps)
            if dist.get_rank() == 0:
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def start(options: argparse.Namespace) -> dict[str, Any]:
    """An engine per setting."""
    training.start_rank()
    if dist.get_rank() == 0:
        write_model(options.model)
    dist.barrier()
    from rljob_trainer.megatron import parallel_state
    from rljob_trainer.megatron.engine import Engine

    # megatron makes its groups once in a process; all settings have the same
    parallel_state.initialize = functools.cache(parallel_state.initialize)
    settings = {name: on for name, on in SETTINGS.items() if options.mini_batches > 1 or not on["paramGather"]}
    return {name: Engine(spec(options, on), lambda: None) for name, on in settings.items()}


def spec(options: argparse.Namespace, overlap: dict[str, bool]) -> Any:
    made = training.spec(options.model, "dp2")
    raw = made.model_dump(by_alias=True, exclude_defaults=True)
    raw["train"] |= {"promptsPerStep": 32, "tokensPerMicroBatch": options.tokens, "miniBatches": options.mini_batches}
    raw["trainer"] |= {"overlap": overlap, "device": "gpu" if torch.cuda.is_available() else "cpu"}
    return type(made).model_validate(raw)


def measure(engine: Any, shape: Shape, steps: int) -> dict[str, Any]:
    times: list[float] = []
    metrics: dict[str, Any] = {}
    for step in range(1, steps + 2):
        made = training.sampled(shape, step)
        dist.barrier()
        seconds, metrics = training.timed_step(engine, made)
        times.append(seconds)
    return {
        "tokens_per_s_per_gpu": round(shape.tokens / min(times[1:]) / dist.get_world_size()),
        "seconds": [round(t, 4) for t in times],
        "loss": metrics["train/loss"],
        "grad_norm": metrics["train/grad_norm"],
    }


if __name__ == "__main__":
    main()
