"""What vLLM's engine generates alone, on one GPU: the work of other benchmarks without the product, and with speculation from n-grams.

    python -m benchmarks.generation [--speculate TOKENS] [--share 0.9] [--device gpu|cpu] [--size NAME] [--out FILE]

`LLM.generate` of token ids, 8 samples of a prompt, without log-probabilities and without text:

- fixed: as `benchmarks.step`, 64 prompts of 256 tokens, responses of 1,024; compare with its `time/generate`
- ended: as `benchmarks.asynchrony --prompts 32`, responses end by chance, after 885 tokens of at most 2,048; compare with its run `0`
- greedy: as fixed, at temperature 0, where a random model soon repeats itself: what speculation gains at best

Each is generated twice, and the second time counts. A row has tokens of prompts and responses a second, the mean length of a response, and the
long tail: seconds until half, nine tenths, 99 % and all of the responses were complete. `--speculate N`: vLLM proposes up to N tokens that followed
the same n-gram before; `accepted` is the part of them that it kept.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import asynchrony, step
from benchmarks.shapes import MODELS

PARTS = {"half": 0.5, "nine_tenths": 0.9, "99%": 0.99, "all": 1.0}
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
    parser.add_argument("--out", type=Path, default=Path("generation.jsonl"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rljob-bench-generation")
    options = parser.parse_args()
    model, _ = asynchrony.prepared(options)
    ends = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
    engine = start(model, options)
    for name, (count, lengths, sampling) in works(options.max_tokens, ends).items():
        prompts = encoded(model, options.work / f"{name}.parquet", lengths)[:count]
        rows = [generate(engine, prompts, sampling) for _ in range(2)]
        row = {"what": name, "speculate": options.speculate} | rows[1]
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def works(longest: int, ends: list[int]) -> dict[str, tuple[int, str, dict[str, Any]]]:
    """Prompts, their lengths, and how each is sampled."""
    fixed = {"max_tokens": longest // 2, "ignore_eos": True}
    return {
        "fixed": (64, "fixed", fixed | {"temperature": 1.0}),
        "ended": (32, "mixed", {"max_tokens": longest, "stop_token_ids": ends, "temperature": 1.0}),
        "greedy": (64, "fixed", fixed | {"temperature": 0.0}),
    }


def start(model: Path, options: argparse.Namespace) -> Any:
    from vllm import LLM

    given: dict[str, Any] = {"dtype": "bfloat16", "gpu_memory_utilization": options.share}
    if options.device == "cpu":
        given = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 2**28}
        given["enable_chunked_prefill"] = False  # see WHOLE_PROMPTS in rollout/arguments.py
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
    tokens = sum(lengths) + step.SAMPLES * sum(map(len, prompts))
    accepted, proposed = (after - n for after, n in zip(counters(engine), before, strict=True))
    row = {
        "tokens_per_s": round(tokens / seconds),
        "seconds": round(seconds, 2),
        "mean_length": round(sum(lengths) / len(lengths), 1),
    }
    return row | tail(outputs) | ({"accepted": round(accepted / proposed, 3), "proposed": proposed} if proposed else {})


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
