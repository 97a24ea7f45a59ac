"""A layer of experts by Transformer Engine, its products one by one and at once: errors against float64, and time with lengths that are always new.

    python -m benchmarks.expert_products [--out FILE]

On one H100 or H200. Layers: 16 experts, 256 to 512, three without tokens; 64 experts of Qwen3-30B-A3B on one of two ranks, both matrices, with
100,003 tokens of unequal shares; 8 experts without any token; and both matrices of adapters of rank 4. Errors are the largest of an expert, relative
by norm: of forward products, of gradients of inputs and of weights, these added to float32 or as they are. `host_ms` is until the host has started a
forward and a backward pass, `ms` until the GPU has ended it, each with lengths that were not met before.
"""

import argparse
import itertools
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import jobs
from rljob_trainer.megatron import compat

REPEATS = 4
WAYS = ("one by one", "at once")
SHAPES = (
    (16, 256, 512, 4_099, 3),
    (64, 2048, 1536, 100_003, 0),
    (64, 768, 2048, 100_003, 0),
    (8, 256, 512, 0, 8),
    (8, 256, 4, 4_099, 0),
    (8, 4, 256, 4_099, 0),
)
"""Experts, numbers of a row before and after, rows, experts without rows."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.expert_products")
    parser.add_argument("--out", type=Path, default=Path("expert_products.jsonl"))
    out = parser.parse_args().out
    compat.install()
    cases = itertools.product(SHAPES, (False, True), WAYS)
    jobs.record(out, ([measured(way, fused, *shape)] for shape, fused, way in cases))


def measured(way: str, fused: bool, experts: int, before: int, after: int, rows: int, empty: int) -> dict[str, Any]:
    choose(way)
    layer = layer_of(experts, before, after, fused)
    source = random.Random(0)
    found = {"way": way, "fused": fused, "experts": experts, "in": before, "out": after, "rows": rows, "empty": empty}
    found |= errors(layer, fused, shares(source, experts, rows, empty))
    if rows:
        lengths = [shares(source, experts, rows, empty) for _ in range(REPEATS + 1)]
        found |= times(layer, lengths)
    return found


def choose(way: str) -> None:
    from transformer_engine.pytorch.cpp_extensions import general_grouped_gemm
    from transformer_engine.pytorch.module import grouped_linear

    from rljob_trainer.megatron.compat.grouped_products import VARIABLE, at_once

    os.environ[VARIABLE] = str(int(way == "at once"))
    grouped_linear.general_grouped_gemm = at_once(general_grouped_gemm) if way == "at once" else general_grouped_gemm


def layer_of(experts: int, before: int, after: int, fused: bool) -> Any:
    import transformer_engine.pytorch as te

    torch.manual_seed(1)
    layer = te.GroupedLinear(
        experts,
        before,
        after,
        bias=False,
        params_dtype=torch.bfloat16,
        device="cuda",
        fuse_wgrad_accumulation=fused,
    )
    for weight in weights(layer):
        weight.main_grad = torch.zeros(after, before, device="cuda")
        weight.grad_added_to_main_grad = False
    return layer


def weights(layer: Any) -> list[Any]:
    return [getattr(layer, f"weight{i}") for i in range(layer.num_gemms)]


def shares(source: random.Random, experts: int, rows: int, empty: int) -> list[int]:
    """Rows of each expert, of which the first, the one in the middle and the last have none if three are to be `empty`."""
    if not rows:
        return [0] * experts
    without = {0, experts // 2, experts - 1} if empty else set()
    drawn = [0.0 if i in without else source.expovariate(1) for i in range(experts)]
    counts = [int(rows * part / sum(drawn)) for part in drawn]
    counts[1] += rows - sum(counts)
    return counts


def inputs_of(layer: Any, lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and gradients of what the layer makes of them."""
    rows, (after, before) = sum(lengths), weights(layer)[0].shape
    given = torch.randn(rows, before, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    return given, torch.randn(rows, after, dtype=torch.bfloat16, device="cuda")


def errors(layer: Any, fused: bool, lengths: Sequence[int]) -> dict[str, float]:
    given, gradients = inputs_of(layer, lengths)
    made = layer(given, list(lengths))
    made.backward(gradients)
    assert given.grad is not None
    largest = {"forward": 0.0, "inputs": 0.0, "weights": 0.0}
    parts = zip(*(t.detach().split(list(lengths)) for t in (given, gradients, made, given.grad)), strict=True)
    for weight, (x, dy, y, dx) in zip(weights(layer), parts, strict=True):
        w, learnt = weight.detach().double(), weight.main_grad if fused else weight.grad
        exact = {"forward": x.double() @ w.t(), "inputs": dy.double() @ w, "weights": dy.double().t() @ x.double()}
        for name, result in (("forward", y), ("inputs", dx), ("weights", learnt)):
            largest[name] = max(largest[name], relative(result, exact[name]))
    return largest


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Where all is zero, any other number is infinitely wrong."""
    if not exact.any():
        return float("inf") if found.any() else 0.0
    return float((found.double() - exact).norm() / exact.norm())


def times(layer: Any, every: Sequence[Sequence[int]]) -> dict[str, float]:
    """Of the median repetition behind the first."""
    seconds = []
    for lengths in every:
        given, gradients = inputs_of(layer, lengths)
        torch.cuda.synchronize()
        began = time.perf_counter()
        layer(given, list(lengths)).backward(gradients)
        host = time.perf_counter() - began
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - began, host))
    whole, host = sorted(seconds[1:])[len(seconds) // 2 - 1]
    return {"ms": round(1e3 * whole, 2), "host_ms": round(1e3 * host, 2)}


if __name__ == "__main__":
    main()
