"""Apex against what we have in its place, by turns on one GPU: a step of Adam, and the training phase with either fusion of weight gradients.

    torchrun --nproc-per-node 1 -m benchmarks.apex [--size NAME] [--rounds N]

`adam`: each FusedAdam that is installed and torch's fused AdamW, on float32 parameters of the model's shapes. `training`: the product's own training
phase, packed shape, in the layers that are installed; Transformer Engine's add their gradients themselves, so with them only the output layer is
concerned (`calls`, in a step).

Prints a JSON line for each. `distance`: of the parameters after three steps from those of the first line, as a share of what the steps changed; in
`training`, "ours again" says how far two runs of the same are apart. Ends with 1 where a distance is above its bound.
"""

import argparse
import dataclasses
import functools
import gc
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import training
from benchmarks.shapes import MODELS, model_of, shapes
from benchmarks.turns import by_turns, distances

STEPS = 3
ADAM_BOUND = 1e-4
NOISE, LEAST = 2, 1e-2
"""Bound in training: so many times the distance of two runs of the same, and at least so much."""
MOVED_BYTES = 28
"""By Adam for a float32 parameter: it reads parameter, gradient and two moments, and writes all but the gradient."""
PLACES = {"Transformer Engine": "transformer_engine.pytorch.optimizers", "Apex": "apex.optimizers"}


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.apex")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    training.start_rank()
    equal = [part(options.size, options.rounds) for part in (adam, train)]
    dist.destroy_process_group()
    return 0 if all(equal) else 1


def adam(size: str, rounds: int) -> bool:
    start = parameters(size)
    slopes = [torch.randn_like(p) * 1e-3 for p in start]
    results: dict[str, Any] = {}
    steps: dict[str, Callable[[], Any]] = {}
    for name, make in adams().items():
        results[name] = [torch.nn.Parameter(p.clone()) for p in start]
        for parameter, slope in zip(results[name], slopes, strict=True):
            parameter.grad = slope
        steps[name] = make(results[name], lr=1e-3, weight_decay=0.01).step
    for _ in range(STEPS):
        for step in steps.values():
            step()
        torch._foreach_mul_(slopes, -0.5)
    apart, moved = distances(results, start), MOVED_BYTES * sum(p.numel() for p in start)
    for name, times in by_turns(steps, rounds).items():
        say("adam", name, times, apart, gigabytes_per_s=round(moved / min(times) / 1e9, 1))
    return max(apart.values()) <= ADAM_BOUND


def adams() -> dict[str, Callable[..., Any]]:
    fused = {name: module for name, module in PLACES.items() if importlib.util.find_spec(module.partition(".")[0])}
    found = {name: importlib.import_module(module).FusedAdam for name, module in fused.items()}
    return {"torch": functools.partial(torch.optim.AdamW, fused=True)} | found


def parameters(size: str) -> list[torch.Tensor]:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODELS[size]))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return [torch.randn(p.shape) * 0.02 for p in model.parameters()]


class Fusion:
    """The extension that megatron's linear layers call, with a count of the calls."""

    def __init__(self, accumulate: Callable[..., Any]) -> None:
        self.accumulate, self.calls = accumulate, 0

    def wgrad_gemm_accum_fp32(self, *tensors: torch.Tensor) -> None:
        self.calls += 1
        self.accumulate(*tensors)


def fusions() -> dict[str, Fusion]:
    from rljob_trainer.megatron.compat.environment import accumulate

    found = {"ours": accumulate, "ours again": accumulate}
    extension = importlib.util.find_spec("fused_weight_gradient_mlp_cuda")
    if extension and extension.origin:  # ours, in its place, comes from no file
        found["Apex"] = importlib.import_module(extension.name).wgrad_gemm_accum_fp32
    return {name: Fusion(add) for name, add in found.items()}


def train(size: str, rounds: int) -> bool:
    from megatron.core.tensor_parallel import layers

    def step(name: str, number: int = 0) -> None:
        layers.fused_weight_gradient_mlp_cuda = used[name]
        norms[name].append(training.timed_step(engines[name], batches[number])[1]["train/grad_norm"])

    gc.collect()  # the optimizers of `adam`
    used, shape = fusions(), shapes()["packed"]
    if not torch.cuda.is_available():
        shape = dataclasses.replace(shape, lengths=(200,) * 4)
    engines = {name: engine(size) for name in used}
    norms: dict[str, list[float]] = {name: [] for name in used}
    batches = [training.sampled(shape, number + 1, MODELS[size]["vocab_size"]) for number in range(STEPS)]
    start = [tensor.cpu() for _, tensor in engines["ours"].export()]
    for number in range(STEPS):
        for name in engines:
            step(name, number)
    apart = distances({name: (t for _, t in e.export()) for name, e in engines.items()}, start)
    for name, times in by_turns({name: functools.partial(step, name) for name in engines}, rounds).items():
        more = {"layers": engines[name].backend, "calls": used[name].calls // len(norms[name])}
        speed = round(shape.tokens / min(times))
        say("training", name, times, apart, tokens_per_s=speed, grad_norms=norms[name][:STEPS], **more)
    return max(apart.values()) <= max(LEAST, NOISE * apart["ours again"])


def engine(size: str) -> Any:
    from rljob_api.spec.common import Sampling
    from rljob_api.spec.train import Optimizer
    from rljob_trainer.megatron import parallel_state
    from rljob_trainer.megatron.engine import Engine

    made = training.spec(model_of(size), "tp1")
    rollout = made.rollout.model_copy(update={"sampling": Sampling(max_tokens=2048)})
    visible = Optimizer(learning_rate=1e-4)  # three steps must show in bfloat16
    train = made.train.model_copy(update={"optimizer": visible})
    device = made.trainer.model_copy(update={"device": "gpu" if torch.cuda.is_available() else "cpu"})
    # megatron makes its groups once in a process
    parallel_state.initialize = functools.cache(parallel_state.initialize)
    return Engine(made.model_copy(update={"train": train, "trainer": device, "rollout": rollout}), lambda: None)


def say(what: str, which: str, times: list[float], apart: dict[str, float], **more: Any) -> None:
    seconds = [round(t, 5) for t in times]
    print(json.dumps({"what": what, "which": which, "seconds": seconds, "distance": apart[which]} | more), flush=True)


if __name__ == "__main__":
    sys.exit(main())
