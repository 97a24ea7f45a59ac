"""Do several of vLLM's engines on one GPU generate more than one does? Where an engine's own thread is the limit and not the GPU, they should.

    python -m benchmarks.engines [--engines 1 2 3] [--quantization none fp8 ...] [--requests 512] [--max-tokens 1024] [--cache-gib GIB] [--size 1.5b]
        [--device gpu|cpu] [--out FILE]

The work of `benchmarks.step`: prompts of 256 tokens, 8 samples of each, all responses equally long, with a log-probability for every token as a job
asks for, divided equally among the engines. Each is a process of its own without the product, with its own copy of the weights, which vLLM rounds
with `--quantization`, and its part of the cache. They begin each round together, and a round ends with the last of them; the best of the last two
counts. Prints for each number of engines and each way of rounding the tokens of prompts and responses a second, and its ratio to the first.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks import asynchrony, generation, scratch, step
from benchmarks.shapes import MODELS

CACHE_GIB = {"gpu": 32.0, "cpu": 1.0}
"""Of all engines together, where no option says otherwise; a fixed size, because engines that start at the same time cannot measure what is free."""

NOT_QUANTIZED = "none"

START_SECONDS = 400
"""Until all engines are ready; then the others end, when one has failed."""


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.engines")
    parser.add_argument("--engines", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--quantization", nargs="+", default=[NOT_QUANTIZED], help="of vLLM: fp8, for example")
    parser.add_argument("--cache-gib", type=float, help="for keys and values, of all engines together")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a response")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("engines.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "engines") as options.work:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    model, _ = asynchrony.prepared(options)
    prompts = generation.encoded(model, options.work / "fixed.parquet", "fixed")[: options.requests // step.SAMPLES]
    tokens = options.requests * (len(prompts[0]) + options.max_tokens)
    rates = list[float]()
    for engines, quantization in itertools.product(options.engines, options.quantization):
        rates.append(tokens / min(rounds(model, prompts, engines, quantization, options)[1:]))
        asked = {"engines": engines, "quantization": quantization, "size": options.size}
        row = asked | {"tokens_per_s": round(rates[-1]), "of_first": round(rates[-1] / rates[0], 3)}
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def rounds(
    model: Path, prompts: list[list[int]], engines: int, quantization: str, options: argparse.Namespace
) -> list[float]:
    """Seconds of each round."""
    context = multiprocessing.get_context("spawn")
    barrier, took = context.Barrier(engines), context.Queue()
    parts = [prompts[i::engines] for i in range(engines)]
    given = arguments(engines, quantization, options)
    processes = [context.Process(target=engine, args=(given, model, part, options, barrier, took)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("an engine has failed")
    found = [took.get() for _ in processes]
    return [max(seconds) for seconds in zip(*found, strict=True)]


def arguments(engines: int, quantization: str, options: argparse.Namespace) -> dict[str, Any]:
    """Of vLLM, for each engine."""
    gpu = options.device == "gpu"
    given: dict[str, Any] = {"dtype": "bfloat16"} if gpu else {"dtype": "float32", "enforce_eager": True}
    given["kv_cache_memory_bytes"] = int((options.cache_gib or CACHE_GIB[options.device]) * 2**30 / engines)
    if quantization != NOT_QUANTIZED:
        given["quantization"] = quantization
    return given


def engine(
    given: dict[str, Any],
    model: Path,
    prompts: list[list[int]],
    options: argparse.Namespace,
    barrier: Barrier,
    took: "Queue[list[float]]",
) -> None:
    """One process: its part of the prompts, in each round."""
    from vllm import LLM

    longest = len(prompts[0]) + options.max_tokens
    llm = LLM(str(model), max_model_len=longest, generation_config="vllm", disable_log_stats=False, **given)
    sampling = {"max_tokens": options.max_tokens, "ignore_eos": True, "temperature": 1.0, "logprobs": 0}
    seconds = list[float]()
    for _ in range(generation.REPEATS):
        barrier.wait(START_SECONDS)
        began = time.perf_counter()
        generation.generate(llm, prompts, sampling)
        seconds.append(time.perf_counter() - began)
    took.put(seconds)


if __name__ == "__main__":
    main()
