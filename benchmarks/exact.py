"""vLLM's batch-invariant mode and the same kernels in the trainer: are log-probabilities equal to the last bit, and what is the cost?

    python -m benchmarks.exact [--size 1.5b] [--tokens 128] [--samples 32] [--limit SECONDS] [--out FILE]

Four processes, one after another, none of them a job: vLLM as it is and in batch-invariant mode, each generating the same prompts (tokens/s); and the
trainer as it is and with vLLM's kernels, each measuring the samples of the second server and taking optimizer steps (seconds). Prints the mean and
largest |log-probability of trainer - of vLLM|. Then, operation by operation through the first and the last layer, for the tokens of one sample: how
many numbers of trainer and server differ, and by how much at most. The first line that is not 0 names the operation to look at; what comes after it
follows from it. What fails says so, and the others go on.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import jobs, scratch, training
from benchmarks.shapes import MODELS, model_of

PROMPTS, TEMPERATURE, STEPS = (3, 60, 250, 500), 1.0, 4
LAYER = (
    *("input_layernorm", "qkv_proj", "q_norm", "k_norm", "rotary_emb", "attn", "o_proj"),
    "post_attention_layernorm",
    "gate_up_proj",
    "act_fn",
    "down_proj",
)
"""Modules of a layer of vLLM in the order of their calls; models have q_norm and k_norm, or not."""


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.exact")
    parser.add_argument("--size", choices=list(MODELS), default="1.5b")
    parser.add_argument("--tokens", type=int, default=128, help="of a response")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a process")
    parser.add_argument("--out", type=Path, default=Path("exact.jsonl"))
    parser.add_argument("--work", type=Path, help=scratch.HELP)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, exact = options.worker
        row = {"serve": serve, "train": train}[what](options, exact == "exact")
        print(json.dumps({"what": what, "kernels": exact} | row), flush=True)
        return 0
    model_of(options.size)
    order = [("serve", "exact"), ("train", "exact"), ("train", "plain"), ("serve", "plain")]  # what compiles comes last
    with scratch.directory(options.work, "exact") as options.work:
        rows = [run(options, *worker) for worker in order]
    options.out.write_text(jobs.lines(rows))
    return int(any(row["exit"] for row in rows))


def run(options: argparse.Namespace, what: str, exact: str) -> dict[str, Any]:
    """The row that a process printed; its last words when it failed."""
    command = [sys.executable, *(training.torchrun(1) if what == "train" else ()), "-m", "benchmarks.exact"]
    command += ["--size", options.size, "--tokens", str(options.tokens), "--samples", str(options.samples)]
    command += ["--work", str(options.work)]
    began = time.monotonic()
    done = subprocess.run(
        ["timeout", "-k", "5", str(options.limit), *command, "--worker", what, exact],
        env=os.environ | (environment(exact == "exact") if what == "serve" else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(f"{what} {exact}: exit {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    lines = done.stdout.splitlines()
    said = [line for line in lines if line.startswith(("{", "operation"))]
    print("\n".join(said if not done.returncode else [*said, *lines[-60:]]), flush=True)
    row = json.loads(said[-1]) if said and said[-1].startswith("{") else {"what": what, "kernels": exact}
    return row | {"exit": done.returncode}


def environment(exact: bool) -> dict[str, str]:
    """A server's. The engine is in the process, so that its model can be looked at."""
    from rljob_trainer.pod.arguments import CPU_ENVIRONMENT, EXACT_ENVIRONMENT
    from rljob_trainer.wire.rollout_server import EXACT_ON_CPU

    ours = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if has_gpu():
        return ours | (EXACT_ENVIRONMENT if exact else {})
    return ours | CPU_ENVIRONMENT | {EXACT_ON_CPU: str(int(exact)), "VLLM_CPU_KVCACHE_SPACE": "1"}


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def serve(options: argparse.Namespace, exact: bool) -> dict[str, Any]:
    """Tokens/s of generation; the exact server keeps samples and the results of every operation on one of them."""
    import torch

    from rljob_trainer.pod.arguments import EXACT_ON_GPU
    from rljob_trainer.server import compat

    compat.install()
    from vllm import LLM, SamplingParams

    given: dict[str, Any] = {"enforce_eager": True, "enable_chunked_prefill": False} if not has_gpu() else {}
    if exact and has_gpu():
        given = {"compilation_config": EXACT_ON_GPU["compilation-config"]}
    engine = LLM(
        str(model_of(options.size)),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=2048,
        gpu_memory_utilization=0.6,
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=False,
        **given,
    )
    draw, vocabulary = random.Random(0), MODELS[options.size]["vocab_size"]
    prompts = [draw.choices(range(vocabulary), k=PROMPTS[i % len(PROMPTS)]) for i in range(options.samples)]
    drawn = {"temperature": TEMPERATURE, "logprobs": 0, "ignore_eos": True, "detokenize": False}
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    engine.generate(asked[:4], SamplingParams(max_tokens=4, **drawn), use_tqdm=False)
    began = time.perf_counter()
    answers = engine.generate(asked, SamplingParams(max_tokens=options.tokens, **drawn), use_tqdm=False)
    seconds = time.perf_counter() - began
    if exact:
        samples = [(a.prompt_token_ids, list(a.outputs[0].token_ids), values(a.outputs[0])) for a in answers]
        torch.save(samples, options.work / "samples.pt")
        kept = watch(engine, samples[2][0] + samples[2][1][:-1], SamplingParams(max_tokens=1, **drawn))
        torch.save(kept, options.work / "operations.pt")
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    return {"tokens_per_s": round(options.tokens * options.samples / seconds), "runner": type(runner).__module__}


def values(answer: Any) -> list[float]:
    """Log-probabilities of the tokens of a response."""
    return [each[token].logprob for each, token in zip(answer.logprobs, answer.token_ids, strict=True)]


def watch(engine: Any, tokens: list[int], parameters: Any) -> dict[str, Any]:
    """What each module of vLLM's model returns for these tokens, read at once without a graph."""
    kept: list[tuple[str, list[Any]]] = []
    model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.model

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, out: Any) -> None:
            several = out if isinstance(out, tuple) else (out,)
            wanted = several if name.endswith("rotary_emb") else several[:1]
            kept.append((name, [x.detach().clone().cpu() for x in wanted]))

        return hook

    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ("embed_tokens", "norm", "logits_processor", *LAYER):
            module.register_forward_hook(keep(name))
    engine.generate([{"prompt_token_ids": tokens}], parameters, use_tqdm=False)
    return {"tokens": tokens, "kept": kept}


def train(options: argparse.Namespace, exact: bool) -> dict[str, Any]:
    """Difference of log-probabilities from the exact server's, and seconds of a step."""
    import torch

    engine = training.start_engine(job(options, exact))
    network = engine._policy
    micro = packed(network, torch.load(options.work / "samples.pt", weights_only=False))
    measured = [network.log_probs([m], TEMPERATURE)[0] for m, _ in micro]
    ours = [x for (m, _), log_probs in zip(micro, measured, strict=True) for x in m.row.collect(log_probs)]
    theirs = [torch.tensor(v) for _, samples in micro for _, _, v in samples]
    differences = (torch.cat(ours) - torch.cat(theirs)).abs()
    row: dict[str, Any] = {"mean": differences.mean().item(), "largest": differences.max().item()}
    row |= {"tokens": len(differences), "unequal": int((differences > 0).sum())}
    print(json.dumps({"what": "log-probabilities", "exact": exact} | row), flush=True)
    if exact:
        compare(network, torch.load(options.work / "operations.pt", weights_only=False))
    shape = training.Shape("exact", (700, 300, 500, 900) * 4, 4096)
    vocabulary = min(150000, MODELS[options.size]["vocab_size"])
    seconds = [training.timed_step(engine, training.sampled(shape, i, vocabulary))[0] for i in range(1, STEPS + 1)]
    return row | {"step_seconds": round(min(seconds[1:]), 3), "backend": engine.backend}


def job(options: argparse.Namespace, exact: bool) -> Any:
    from rljob_api.spec import RLJobSpec

    raw = training.spec(model_of(options.size), "tp1", 4096).model_dump(by_alias=True, exclude_defaults=True)
    raw["rollout"] = {"exact": exact, "sampling": {"maxTokens": 2048}}
    raw["trainer"] = {"device": "gpu" if has_gpu() else "cpu"}
    return RLJobSpec.model_validate(raw)


def packed(network: Any, samples: list[Any], most: int = 8) -> list[tuple[Any, list[Any]]]:
    """Micro-batches of `most` samples each, with the samples."""
    from rljob_trainer.megatron.packing import micro_batch
    from rljob_trainer.wire.trajectory import Trajectory

    fields: dict[str, Any] = {
        "prompt_index": 0,
        "group": 0,
        "sample": 0,
        "finish_reason": "length",
        "reward": 0.0,
        "data_source": "",
    }
    parts = [samples[i : i + most] for i in range(0, len(samples), most)]
    made = [
        [Trajectory.of_response(prompt, drawn, values, 0, **fields) for prompt, drawn, values in part] for part in parts
    ]
    rows = [micro_batch(part, range(len(part)), network.parallel) for part in made]
    return list(zip(rows, parts, strict=True))


def compare(network: Any, watched: dict[str, Any]) -> None:
    """Print what differs, operation by operation: calls of the trainer's kernels next to the calls of vLLM's modules, in their order."""
    import torch

    from rljob_trainer.megatron.exact import model as exact_model

    tokens, theirs = watched["tokens"], dict(enumerate(watched["kept"]))
    module: Any = network.modules[0]
    attention = module.decoder.layers[0].self_attention.core_attention
    for layer in module.decoder.layers:
        layer.self_attention.core_attention = layer.self_attention.core_attention.formula
    calls: list[tuple[str, list[Any]]] = []
    exact_model.install([module], recorded(attention.kernels, calls), attention.rope)
    module.embedding.word_embeddings.register_forward_hook(lambda _m, _i, out: calls.append(("embedding", [out])))
    (micro, _), *_ = packed(network, [(tokens[:1], [*tokens[1:], 0], [0.0] * len(tokens))])
    with torch.no_grad():
        network.log_probs([micro], TEMPERATURE)
    print(f"operation: {len(calls)} calls in the trainer, {len(theirs)} in vLLM", flush=True)
    for number, (kernel, ours) in enumerate(calls):
        if number in theirs:
            show(theirs[number], kernel, ours, network.modules[0].config)


def recorded(kernels: Any, calls: list[tuple[str, list[Any]]]) -> Any:
    """The same kernels, with a list of their names and results."""

    def of(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            out = getattr(kernels, name)(*arguments)
            calls.append((name, list(out) if isinstance(out, tuple) else [out]))
            return out

        return call

    return SimpleNamespace(
        **{name: of(name) for name in ("linear", "rms_norm", "silu_and_mul", "rotate", "attend")},
        log_probs=kernels.log_probs,
    )


def show(theirs: tuple[str, list[Any]], kernel: str, ours: list[Any], config: Any) -> None:
    """A line: vLLM's name, the trainer's kernel, how many numbers differ, the largest difference."""
    name, values = theirs
    for server, mine in zip(values, ours, strict=True):
        rank = mine.detach().cpu()
        rank = rank.reshape(-1, rank.shape[-1]) if name.endswith("qkv_proj") else rank
        rank = in_order(rank, config) if name.endswith("qkv_proj") else rank
        rows = server.reshape(-1)
        flat = rank.reshape(-1)[-len(rows) :] if name.endswith("logits_processor") else rank.reshape(-1)
        if len(rows) != len(flat):
            print(f"operation {name} {kernel}: {tuple(server.shape)} and {tuple(rank.shape)}", flush=True)
            continue
        apart = (rows.float() - flat.float()).abs()
        unequal, largest = int((apart > 0).sum()), apart.max().item()
        print(f"operation {name} {kernel}: {unequal} of {len(flat)} differ, by {largest:.3g} at most", flush=True)


def in_order(mixed: Any, config: Any) -> Any:
    """megatron's queries, keys and values [t, group by group] as vLLM's: all queries, all keys, all values."""
    import torch

    groups, width = config.num_query_groups, config.kv_channels
    heads = config.num_attention_heads // groups
    parts = mixed.view(len(mixed), groups, -1).split([heads * width, width, width], -1)
    return torch.cat([part.flatten(1) for part in parts], -1)


if __name__ == "__main__":
    sys.exit(main())
