"""What servers on a GPU draw while they guess tokens (`rollout.speculation`), which the rules refuse until this has shown it, and how fast.

    python -m benchmarks.guesses [ngram eagle3 mtp rates mtp-rates] [--device gpu|cpu] [--out FILE]

For each method a server with the small model of tests/trainer/server/test_speculation.py, whose next token depends on the last one alone. Prints
one JSON line each: the statistic of Kolmogorov-Smirnov of 9,000 tokens drawn at temperature 0.8, against the model's distribution by transformers
in float32 (`drawn`; by topP 0.7 next to greedy requests, `nucleus`), which is to be below `bound`; the same against temperature 1, which is to be
far above it (`other`); the largest difference of a log-probability; and tokens of a pass. `rates`: tokens/s of 1, 8 and 64 requests of such a model
of 28 layers, as wide as Qwen2.5-1.5B, with n-grams and without guesses. `mtp-rates`: of a model with experts of this depth and width, whose own layer
knows its next token, with one and three guesses and without.
"""

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from benchmarks import generation, weights
from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RolloutClient
from trainer.server import test_speculation

Drawn = list[tuple[tuple[int, ...], Generation]]
METHODS = ("ngram", "eagle3", "mtp")
RATES, MULTI_TOKEN_RATES = "rates", "mtp-rates"
MULTI_TOKEN = "glm4_moe"
"""The kind of model whose own layer guesses."""
TOKENS = 3
WIDE = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "head_dim": 128,
}
WIDE_EXPERTS = WIDE | {"moe_intermediate_size": 2240}
"""Two of four, and the shared one, meet a token: three quarters of the feed-forward matrix."""
RESPONSE = 256


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.guesses")
    parser.add_argument("methods", nargs="*", default=[*METHODS, RATES], help="what to measure")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--out", type=Path, default=Path("guesses.jsonl"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for row in rows(options, Path(directory)):
            with options.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


def rows(options: argparse.Namespace, directory: Path) -> Iterator[dict[str, Any]]:
    for method in options.methods:
        if method in (RATES, MULTI_TOKEN_RATES):
            yield from (rates if method == RATES else multi_token_rates)(directory, options.device)
            continue
        try:
            yield {"method": method} | distribution(method, directory / method, options.device)
        except (RuntimeError, OSError) as error:
            yield {"method": method, "failed": str(error)[-2000:]}


def rates(directory: Path, device: str) -> Iterator[dict[str, Any]]:
    wide = test_speculation.repeating(directory / "wide", 1, **WIDE)
    yield from rates_of(wide, device, [{"method": "ngram", "tokens": TOKENS}])


def multi_token_rates(directory: Path, device: str) -> Iterator[dict[str, Any]]:
    wide = test_speculation.guessing_well(directory / "wide-experts", 1, MULTI_TOKEN, **WIDE_EXPERTS)
    yield from rates_of(wide, device, [{"method": "mtp", "tokens": tokens} for tokens in (1, TOKENS)])


def rates_of(model: Path, device: str, ways: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without guesses first, then by each of `ways`."""
    for given in (None, *ways):
        with serving(model, device, given):
            for count in (1, 8, 64):
                yield {"guessing": given, "requests": count} | asyncio.run(rate(count))


def distribution(method: str, directory: Path, device: str) -> dict[str, Any]:
    directory.mkdir()
    model = model_for(method, directory / "model")
    with serving(model, device, guessing(method, directory)):
        drawn = drawn_from(64)
        mixed = drawn_from(32, test_speculation.NUCLEUS, test_speculation.GREEDY)
    return compared(model, drawn, mixed)


def model_for(method: str, path: Path) -> Path:
    if method == "mtp":
        return test_speculation.guessing_well(path, 2, MULTI_TOKEN)
    return test_speculation.repeating(path, 2)


def guessing(method: str, directory: Path) -> dict[str, Any]:
    """A section `rollout.speculation`, with the draft model that it names."""
    given: dict[str, Any] = {"method": method, "tokens": 2 if method == "mtp" else TOKENS}
    return given | ({"draft": str(test_speculation.eagle(directory / "draft"))} if method == "eagle3" else {})


def compared(model: Path, drawn: Drawn, mixed: Drawn) -> dict[str, Any]:
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    temperature, share = test_speculation.SAMPLING.temperature, test_speculation.NUCLEUS.top_p
    likeliest = mixed[: -len(test_speculation.PROMPTS)]
    return {
        "tokens": sum(len(answer.tokens) for _, answer in drawn),
        "bound": test_speculation.BOUND,
        "drawn": round(test_speculation.deviation(policy, drawn, temperature), 3),
        "nucleus": round(test_speculation.deviation(policy, likeliest, temperature, share), 3),
        "other": round(test_speculation.deviation(policy, drawn, 1.0), 3),
        "log_prob_error": round(test_speculation.log_prob_error(policy, drawn), 5),
        "tokens_of_a_pass": round(test_speculation.acceptance(drawn), 3),
    }


@contextmanager
def serving(model: Path, device: str, given: dict[str, Any] | None) -> Iterator[None]:
    job = spec(model, device, given)
    with weights.server(job):
        generation.publish(job, model)
        yield


def spec(model: Path, device: str, given: dict[str, Any] | None) -> RLJobSpec:
    """`given`: see `guessing`. Without the rules, which refuse it."""
    gpu = device == "gpu"
    rollout: dict[str, Any] = {"placement": "colocated", "sampling": {"maxTokens": RESPONSE}}
    if gpu:
        rollout["vllmArgs"] = {"gpu-memory-utilization": 0.3}
    if given:
        rollout["speculation"] = given
    return RLJobSpec.model_validate(
        {
            "image": "none",
            "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"},
            "data": {"train": ["/none"], "maxPromptTokens": 200},
            "rewards": [{"rule": "exactMatch"}],
            "train": {"steps": 1},
            "trainer": {"device": device},
            "rollout": rollout,
            "checkpoint": {"path": "/tmp/none"},
        }
    )


def drawn_from(samples: int, *samplings: Any) -> Drawn:
    return asyncio.run(test_speculation.drawn_from(weights.ENDPOINT, weights.TOKEN, samples, *samplings))


async def rate(count: int) -> dict[str, Any]:
    """Of so many requests at a time, the second time."""
    sampling = Sampling(temperature=1.0, max_tokens=RESPONSE)
    seconds = math.inf
    async with RolloutClient(weights.ENDPOINT, weights.TOKEN, 1) as client:
        for _ in range(2):
            began = time.perf_counter()
            requests = [GenerationRequest((2, 30, 4, 50), 1, sampling, n) for n in range(count)]
            answered = await asyncio.gather(*map(client.generate, requests))
            seconds = time.perf_counter() - began
    every = [generation for answer in answered for generation in answer]
    tokens = sum(len(generation.tokens) for generation in every)
    passes, right = (sum(generation.guesses[i] for generation in every) for i in range(2))
    return {
        "tokens_per_s": round(tokens / seconds, 1),
        "seconds": round(seconds, 2),
        "tokens_of_a_pass": round(1 + right / passes, 2) if passes else 1.0,
    }


if __name__ == "__main__":
    main()
