"""What a training step spends its time on: torch.profiler's kernels of two steps on each GPU, summed by kind, with a lower bound for each.

    torchrun --nproc-per-node N -m benchmarks.gpu_time [--size NAME] [--shape packed] [--layout NAME] [--tokens N] [--vision KIND]
        [--host] [--out FILE]

The product's own training phase; `--layout`: one of benchmarks/training.py for N GPUs; `--tokens`: of a micro-batch;
`--vision`: of one of benchmarks/vision.py, without bounds. `communication` is all that NCCL does, which includes waiting for the other GPU. Of
kernels that run at the same time, the one that began last counts; `idle` is the time without any, between the first and the last one. So the rows
add up to the whole. On CPU, operations take the place of kernels.

A bound is the least FLOPs of a kind over the data sheet's rate, or its least bytes over that of the memory (`bounds`), of a GPU's even share. Prints
a Markdown table and the kernels that take most, of one GPU after the other; FILE gets both of the first as JSON lines, FILE.1 those of the second.
`unprofiled`: seconds of the fastest step before, without the profiler. With `--host` another table: the operations and calls of
CUDA that take most of the host's own time in two more steps, in all threads (the recording takes time too, so that only their ratios count).
"""

import argparse
import heapq
import json
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from benchmarks import jobs, scratch, training, vision, vision_kinds
from benchmarks.shapes import (
    MODELS,
    PEAK_FLOPS,
    Shape,
    activated_parameters,
    attention_width,
    model_of,
    parameters,
    shapes,
)

WARM_UP, STEPS, LARGEST = 4, 2, 25
PEAK_BYTES = 4.8e12
"""A second, of an H200's memory, by its data sheet."""
KINDS = {
    "attention": r"sdpa|flash|fmha|attn|scaled_dot_product|varlen",
    "log-probabilities": r"^_(sums|gradient)$",
    "optimizer": r"adam|multi_tensor|l2norm",
    "matrix products": r"gemm|nvjet|cutlass|splitk|cublas|aten::(add)?(mm|bmm)",
    "norm": r"norm",
    "dispatch of experts": r"permut|topk|route|sort|scatter_|index",
    "communication": r"nccl|reduce_scatter|all_?reduce|all_?gather",
    "copies and zeros": r"memcpy|memset|copy|fill|zero",
}
"""The first whose expression is found in a kernel's name, in any case, is its kind."""
OTHER, IDLE = "elementwise and other", "idle"


@dataclass(frozen=True, order=True)
class Kernel:
    """Times in microseconds."""

    began: float
    ended: float
    name: str


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_time")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--shape", choices=list(shapes()), default="packed")
    layouts = training.ONE_GPU | training.TWO_GPUS | training.UNEVEN | training.EXPERTS
    parser.add_argument("--layout", choices=list(layouts), default="tp1")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vision", choices=list(vision_kinds.KINDS))
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("gpu_time.jsonl"))
    options = parser.parse_args()
    engine, batch, least = of_images(options.vision) if options.vision else of_texts(options)
    batches = [batch(n) for n in range(1, WARM_UP + STEPS + 1)]

    def profiled_steps() -> None:
        for made in batches[WARM_UP:]:
            training.timed_step(engine, made)

    unprofiled = min([training.timed_step(engine, batch)[0] for batch in batches[:WARM_UP]][1:])
    kernels = profiled(profiled_steps)
    rows = [row | {"unprofiled": round(unprofiled, 4)} for row in summed(kernels, least)]
    report(options.out, engine.backend, rows, largest(kernels), *([host(profiled_steps)] if options.host else []))


def report(file: Path, backend: str, *tables: list[dict[str, Any]]) -> None:
    """Of every rank, in their order."""
    import torch.distributed as dist

    rank = dist.get_rank()
    (file.with_name(f"{file.name}.{rank}") if rank else file).write_text(jobs.lines(chain.from_iterable(tables)))
    for turn in range(dist.get_world_size()):
        if turn == rank:
            print(f"GPU {rank}, {backend}", *map(jobs.table, tables), sep="\n", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def of_texts(options: argparse.Namespace) -> tuple[Any, Callable[[int], Any], dict[str, float]]:
    """A rank, the batch of a step, and the least seconds of each kind."""
    model, shape = MODELS[options.size], shapes()[options.shape]
    engine = training.start_engine(training.spec(model_of(options.size), options.layout, options.tokens))
    gpus = int(os.environ["WORLD_SIZE"])
    least = {what: seconds / gpus for what, seconds in bounds(model, shape).items()}
    return engine, lambda step: training.sampled(shape, step, model["vocab_size"]), least


def of_images(kind: str) -> tuple[Any, Callable[[int], Any], dict[str, float]]:
    engine = training.start_engine(vision.spec(scratch.SHARED / "rljob-bench-vision" / kind, kind))
    return engine, lambda step: vision.sampled(vision_kinds.KINDS[kind], step), {}


def profiled(steps: Callable[[], None]) -> list[Kernel]:
    """What ran on the GPU, in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as recorded:
        steps()
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    wanted = {"kernel", "gpu_memcpy", "gpu_memset"} if gpu else {"cpu_op"}
    return sorted(Kernel(e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") in wanted)


def host(steps: Callable[[], None]) -> list[dict[str, Any]]:
    """What takes most of the host's own time in a step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        steps()
    events = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [
        {
            "host": event.key[:100],
            "own_ms": round(event.self_cpu_time_total / 1e3 / STEPS, 2),
            "ms": round(event.cpu_time_total / 1e3 / STEPS, 2),
            "times": event.count // STEPS,
        }
        for event in events[:LARGEST]
    ]


def kind(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), OTHER)


def summed(kernels: Sequence[Kernel], least: dict[str, float]) -> list[dict[str, Any]]:
    """Of a step, by kind; the longest first."""
    times: dict[str, float] = defaultdict(float)
    for name, microseconds in shares(kernels):
        times[kind(name) if name else IDLE] += microseconds / 1e6 / STEPS
    counts = Counter(kind(kernel.name) for kernel in kernels)
    rows = []
    for what, seconds in sorted(times.items(), key=lambda item: -item[1]):
        row = {"kind": what, "ms": round(seconds * 1e3, 2), "share": round(seconds / sum(times.values()), 4)}
        bound = least.get(what, 0.0)
        rows.append(
            row
            | {
                "kernels": counts[what] // STEPS,
                "bound_ms": round(bound * 1e3, 2),
                "of_bound": round(bound / seconds, 3),
            }
        )
    return rows


def shares(kernels: Iterable[Kernel]) -> Iterable[tuple[str, float]]:
    """Microseconds from the first to the last moment, each with the kernel that they belong to: of those that run, the one that began last. Without
    a name: none runs."""
    waiting = sorted(kernels, reverse=True)
    running: list[tuple[float, float, str]] = []
    for now, then in pairwise(sorted({time for kernel in waiting for time in (kernel.began, kernel.ended)})):
        while waiting and waiting[-1].began <= now:
            kernel = waiting.pop()
            heapq.heappush(running, (-kernel.began, kernel.ended, kernel.name))
        while running and running[0][1] <= now:
            heapq.heappop(running)
        yield running[0][2] if running else "", then - now


def bounds(model: dict[str, Any], shape: Shape) -> dict[str, float]:
    """Least seconds of a step. Activations have two bytes a number. Optimizers have every expert. Forward and backward together move of a token:"""
    layers, width, queries = model["num_hidden_layers"], model["hidden_size"], attention_width(model)
    keys = queries // model["num_attention_heads"] * model["num_key_value_heads"]
    inner = model.get("moe_intermediate_size", 0) * model.get("num_experts_per_tok", 0) or model["intermediate_size"]
    products = 6 * activated_parameters(model) * shape.tokens
    moved = {
        "log-probabilities": 2 * shape.tokens * 3 * model["vocab_size"],  # logits: read twice, their gradient written
        "norm": 2 * shape.tokens * (2 * layers + 1) * 5 * width,  # x and y; x and two gradients
        # SwiGLU: three and five of its width; rotated queries and keys: four; two sums each way of three
        OTHER: 2 * shape.tokens * layers * (8 * inner + 4 * (queries + keys) + 12 * width),
        "optimizer": parameters(model) * (28 + 2 + 4),  # Adam; the parameter in bfloat16; the gradient's norm
        "copies and zeros": parameters(model) * 4,  # gradients begin with zero
    }
    flops = {"matrix products": products, "attention": shape.flops(model) - products}
    return {what: n / PEAK_BYTES for what, n in moved.items()} | {what: n / PEAK_FLOPS for what, n in flops.items()}


def largest(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """The kernels that take most of a step."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        times[kernel.name] += kernel.ended - kernel.began
    counts = Counter(kernel.name for kernel in kernels)
    return [
        {"kernel": name[:100], "of": kind(name), "ms": round(time / 1e3 / STEPS, 2), "times": counts[name] // STEPS}
        for name, time in sorted(times.items(), key=lambda item: -item[1])[:LARGEST]
    ]


if __name__ == "__main__":
    main()
