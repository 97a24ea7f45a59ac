"""What vLLM's engine generates alone, on one GPU: the work of other benchmarks without the product, and with speculation from n-grams.

    python -m benchmarks.generation [--speculate TOKENS] [--share 0.9] [--device gpu|cpu] [--size NAME] [--works NAME ...] [--out FILE]

`LLM.generate` of token ids, 8 samples of a prompt, without log-probabilities and without text:

- fixed: as `benchmarks.step`, 64 prompts of 256 tokens, responses of 1,024; compare with its `time/generate`
- ended: as `benchmarks.asynchrony --prompts 32`, responses end by chance, after 885 tokens of at most 2,048; compare with its run `0`
- greedy: as fixed, at temperature 0, where a random model soon repeats itself: what speculation gains at best
- served: as ended, asked of a rollout server as a job asks, with a log-probability for every token: what the product adds to the engine

Each is generated three times, and the best of the last two counts. A row has tokens of prompts and responses a second, the mean length of a
response, and the long tail: seconds until half, nine tenths, 99 % and all of the responses were complete. `--speculate N`: vLLM proposes up to N
tokens that followed the same n-gram before; `accepted` is the part of them that it kept.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import asynchrony, scratch, step, weights
from benchmarks.shapes import MODELS
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient

PARTS = {"half": 0.5, "nine_tenths": 0.9, "99%": 0.99, "all": 1.0}
REPEATS = 3
SERVED = "served"
SERVED_PROMPTS = 32
WORKS = ("fixed", "ended", "greedy", SERVED)
SPECULATION = ("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.generation")
    parser.add_argument("--speculate", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.9, help="of the GPU's memory")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument(
        "--max-tokens", type=int, default=2048, help="of a response that ends by chance; others have half"
    )
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--out", type=Path, default=Path("generation.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    options = parser.parse_args()
    with scratch.directory(options.work, "generation") as options.work:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    model, _ = asynchrony.prepared(options)
    ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    if SERVED in options.works:
        report(options, SERVED, through_a_server(model, options))
    alone = {name: work for name, work in works(options.max_tokens, ends).items() if name in options.works}
    engine = start(model, options) if alone else None
    for name, (count, lengths, sampling) in alone.items():
        prompts = encoded(model, options.work / f"{name}.parquet", lengths)[:count]
        report(options, name, [generate(engine, prompts, sampling) for _ in range(REPEATS)])


def report(options: argparse.Namespace, name: str, rows: list[dict[str, Any]]) -> None:
    row = {"what": name, "speculate": options.speculate} | max(rows[1:], key=lambda row: row["tokens_per_s"])
    with options.out.open("a") as out:
        out.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def works(longest: int, ends: list[int]) -> dict[str, tuple[int, str, dict[str, Any]]]:
    """Prompts, their lengths, and how each is sampled."""
    fixed = {"max_tokens": longest // 2, "ignore_eos": True}
    return {
        "fixed": (64, "fixed", fixed | {"temperature": 1.0}),
        "ended": (SERVED_PROMPTS, "mixed", {"max_tokens": longest, "stop_token_ids": ends, "temperature": 1.0}),
        "greedy": (64, "fixed", fixed | {"temperature": 0.0}),
    }


def start(model: Path, options: argparse.Namespace) -> Any:
    from vllm import LLM

    given: dict[str, Any] = {"dtype": "bfloat16", "gpu_memory_utilization": options.share}
    if options.device == "cpu":
        given = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28}
        given["enable_chunked_prefill"] = False  # see WHOLE_PROMPTS in pod/arguments.py
    if options.speculate:
        tokens = options.speculate
        given["speculative_config"] = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 4}
    longest = options.max_tokens + 256
    return LLM(str(model), max_model_len=longest, generation_config="vllm", disable_log_stats=False, **given)


def encoded(model: Path, file: Path, lengths: str) -> list[list[int]]:
    """The prompts of other benchmarks: a token per digit."""
    import pyarrow.parquet as pq

    step.prompts(file, lengths)
    return [[int(digit) for digit in text] for text in pq.read_table(file)["prompt"].to_pylist()]


def generate(engine: Any, prompts: list[list[int]], sampling: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams, TokensPrompt

    every = [
        (TokensPrompt(prompt_token_ids=ids), SamplingParams(**sampling, seed=i * step.SAMPLES + n, detokenize=False))
        for i, ids in enumerate(prompts)
        for n in range(step.SAMPLES)
    ]
    before, began = counters(engine), time.perf_counter()
    outputs = engine.generate([p for p, _ in every], [s for _, s in every], use_tqdm=False)
    seconds = time.perf_counter() - began
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    accepted, proposed = (after - n for after, n in zip(counters(engine), before, strict=True))
    row = rates(prompts, lengths, seconds)
    return row | tail(outputs) | ({"accepted": round(accepted / proposed, 3), "proposed": proposed} if proposed else {})


def through_a_server(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of `served`. The server gets the model's weights as in a job, over the GPU that this process shares with it."""
    gpu = options.device == "gpu"
    given: dict[str, Any] = {"image": "none", "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"}}
    given |= {"data": {"train": ["/none"], "maxPromptTokens": 256}, "rewards": [{"rule": "exactMatch"}]}
    given |= {"train": {"steps": 1, "promptsPerStep": SERVED_PROMPTS, "samplesPerPrompt": step.SAMPLES}}
    given |= {"trainer": {"device": options.device}, "checkpoint": {"path": "/tmp/none"}}
    sampling = {"maxTokens": options.max_tokens}
    arguments = {"gpu-memory-utilization": min(options.share, 0.8)} if gpu else {}
    given |= {"rollout": {"placement": "colocated", "sampling": sampling, "vllmArgs": arguments}}
    job = RLJobSpec.model_validate(given)
    prompts = encoded(model, options.work / "served.parquet", "mixed")[:SERVED_PROMPTS]
    with weights.server(job):
        publish(job, model)
        return [asyncio.run(served(prompts, Sampling(max_tokens=options.max_tokens))) for _ in range(REPEATS)]


def publish(job: RLJobSpec, model: Path) -> None:
    from safetensors.torch import load_file

    from rljob_trainer.rank.weights.publisher import Publisher
    from rljob_trainer.wire.weights.transport import transport_of

    device = "cuda" if job.trainer.device == "gpu" else "cpu"
    tensors = [item for file in sorted(model.glob("*.safetensors")) for item in load_file(file, device).items()]
    published = Publisher(1, weights.TOKEN, transport_of(job, "127.0.0.1")).publish(
        0, iter(tensors), [weights.ENDPOINT], lambda: None
    )
    if published.failed:
        raise RuntimeError(str(published.failed))


async def served(prompts: list[list[int]], sampling: Sampling) -> dict[str, Any]:
    async with RolloutClient(weights.ENDPOINT, weights.TOKEN, 1) as client:

        async def ask(i: int, ids: list[int]) -> list[Generation]:
            return await client.generate(GenerationRequest(ids, step.SAMPLES, sampling, seed=i * step.SAMPLES))

        began = time.perf_counter()
        found = await asyncio.gather(*(ask(i, ids) for i, ids in enumerate(prompts)))
    lengths = [len(generation.tokens) for of_prompt in found for generation in of_prompt]
    return rates(prompts, lengths, time.perf_counter() - began)


def rates(prompts: list[list[int]], lengths: list[int], seconds: float) -> dict[str, Any]:
    tokens = sum(lengths) + step.SAMPLES * sum(map(len, prompts))
    return {
        "tokens_per_s": round(tokens / seconds),
        "seconds": round(seconds, 2),
        "mean_length": round(sum(lengths) / len(lengths), 1),
    }


def tail(outputs: list[Any]) -> dict[str, float]:
    """Seconds until so many responses were complete."""
    first = min(output.metrics.queued_ts for output in outputs)
    ends = sorted(output.metrics.last_token_ts - first for output in outputs)
    return {name: round(ends[int(part * len(ends)) - 1], 2) for name, part in PARTS.items()}


def counters(engine: Any) -> list[int]:
    """Tokens that were proposed and accepted so far."""
    found = {metric.name.removeprefix("vllm:"): getattr(metric, "value", 0) for metric in engine.get_metrics()}
    return [found.get(name, 0) for name in SPECULATION]


if __name__ == "__main__":
    main()
