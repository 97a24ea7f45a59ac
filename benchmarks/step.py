"""A whole GRPO step with real vLLM: the product's own command on a job of the Qwen2.5-1.5B shape with random weights.

    python -m benchmarks.step [--placement separate|colocated] [--lengths fixed|mixed] [--staleness 0|1] [--size NAME] [--gpus N]
        [--tensor N] [--pipeline N] [--expert N] [--replicas N] [--server-tensor N] [--servers-per-gpu N] [--cache-gib GIB]
        [--lora RANK] [--lora-sync merged|adapters]
        [--kl COEFFICIENT] [--reference shared|own] [--offload] [--optimizer-on-host] [--recompute] [--share PART] [--quantization NAME]
        [--exact] [--prompts N] [--max-tokens N] [--steps N] [--device gpu|cpu] [--out FILE]

64 prompts (or `--prompts`) x 8 samples, 256 tokens of prompt and 1,024 of response (`mixed`: prompts of 128 to 256, responses of up to 2,048), GRPO
without KL, one mini-batch. `--gpus N`, `--tensor N`, `--pipeline N`, `--expert N`: of the trainer; `--replicas N`: servers on GPUs of their own;
`--server-tensor N`: tensor parallelism of a server, otherwise that of the trainer; `--servers-per-gpu N`: colocated servers that share a GPU, each
with a cache of `--cache-gib`, which takes the place of `--share`; `--lora RANK`: adapters are trained in place of all weights;
`--offload`: the trainer's state is in host memory while it rests; `--optimizer-on-host`: optimizer steps are taken there, on states that never leave
it; `--recompute`: activations are computed again, one layer at a time; `--kl`:
with a reference model, on the trainer's GPUs or (`--reference own`) on a gang of as many others. Random weights hardly ever end a response, so its
length is maxTokens, and rewards are as good as random: gradients must not be zero, on which a GPU multiplies faster. Prints the split of the steps
and writes it as JSON, with the bytes of an update of a server, and the largest memory of each GPU and of the host, as a whole and in the ten steps
before steps 20, 100 and 200. Ends without a last checkpoint.
"""

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks import jobs, memory, scratch, unproven
from benchmarks.shapes import MODELS, adapter_bytes, model_of

SAMPLES = 8
MORE = ("time/measure", "train_rollout/probe_diff_mean", "train/kl")
MARKS = (20, 100, 200)
LIMIT_SECONDS = 560
SHARES = {"0.1b": 0.45, "1.5b": 0.45, "14b": 0.45, "7b-22-layers": 0.2}
"""Of a GPU, for a colocated server; 0.3 for the other sizes."""
REWARD = """
def reward(prompt: str, response: str, answer: str) -> float:
    return float(len(response) % 2)
"""


def main() -> int:
    options = parser().parse_args()
    model = model_of(options.size)
    with scratch.directory(options.work, "step") as options.work:
        return measure(options, model)


def measure(options: argparse.Namespace, model: Path) -> int:
    data = options.work / "data"
    write_inputs(data, options.lengths)
    product = unproven.PRODUCT if options.exact else jobs.PRODUCT
    ended = jobs.run(options.work, "bench-step", job(options, model, data), options.steps, options.limit, product)
    options.out.write_text(json.dumps(result(options, model, ended), indent=1))
    print(jobs.table(jobs.summary(ended, options.steps, MORE)))
    print(json.dumps({"update_bytes": update_bytes(options, model), "memory": held(ended)}))
    return ended.code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.step")
    made.add_argument("--placement", choices=["separate", "colocated"], default="separate")
    made.add_argument("--lengths", choices=["fixed", "mixed"], default="fixed")
    made.add_argument("--size", choices=list(MODELS), default="1.5b")
    made.add_argument("--gpus", type=int, default=1, help="of the trainer")
    made.add_argument("--tensor", type=int, default=1, help="tensor parallelism of the trainer")
    made.add_argument("--pipeline", type=int, default=1, help="stages of the trainer")
    made.add_argument("--expert", type=int, default=1, help="expert parallelism of the trainer")
    made.add_argument("--replicas", type=int, default=1, help="servers on GPUs of their own")
    made.add_argument("--server-tensor", type=int, help="tensor parallelism of a server; that of the trainer otherwise")
    made.add_argument("--servers-per-gpu", type=int, default=1, help="colocated; above 1 with --cache-gib")
    made.add_argument("--cache-gib", type=float, default=0.0, help="of each server, for keys and values; 0: by --share")
    made.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all weights are trained")
    made.add_argument("--lora-sync", choices=["merged", "adapters"], default="merged")
    made.add_argument("--kl", type=float, default=0.0, help="coefficient; above 0 there is a reference model")
    made.add_argument("--reference", choices=["shared", "own"], default="shared")
    made.add_argument("--offload", action="store_true", help="parameters, gradients and moments")
    made.add_argument("--optimizer-on-host", action="store_true", help="trainer.offload.update")
    made.add_argument("--recompute", action="store_true", help="all activations")
    made.add_argument("--prompts", type=int, default=64)
    made.add_argument("--max-tokens", type=int, default=0, help="of a response; 0: as --lengths says")
    made.add_argument("--quantization", default="", help="of vLLM: fp8, for example")
    made.add_argument("--exact", action="store_true", help="rollout.exact, also where the rules refuse it")
    made.add_argument("--share", type=float, help="of a GPU, for a server")
    made.add_argument("--staleness", type=int, choices=[0, 1], default=0)
    made.add_argument("--steps", type=int, default=4)
    made.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    made.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds")
    made.add_argument("--out", type=Path, default=Path("step.json"))
    made.add_argument("--work", type=Path, help=scratch.HELP)
    return made


def result(options: argparse.Namespace, model: Path, ended: jobs.Ended) -> dict[str, Any]:
    asked = {key: value for key, value in vars(options).items() if key not in ("out", "work", "limit")}
    found = {"exit": ended.code, "seconds": ended.seconds, "update_bytes": update_bytes(options, model)}
    steps = {row["step"]: row for row in jobs.summary(ended, options.steps, MORE)}
    last = ended.rows[max(steps)] if steps else None
    return asked | found | {"steps": steps, "memory": held(ended), "metrics": last}


def held(ended: jobs.Ended) -> dict[str, Any]:
    marks = {f"step {step}": memory.at(ended.samples, step) for step in MARKS if jobs.complete(ended.rows, step)}
    return {"peak": memory.largest(ended.samples)} | marks


def update_bytes(options: argparse.Namespace, model: Path) -> int:
    """What one update of a server transfers."""
    if options.lora and options.lora_sync == "adapters":
        return adapter_bytes(MODELS[options.size], options.lora)
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def write_inputs(directory: Path, lengths: str = "fixed") -> None:
    """Prompts and a reward function."""
    prompts(directory / "train.parquet", lengths)
    (directory / "reward.py").write_text(REWARD)


def prompts(file: Path, lengths: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file.parent.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    sizes = [256 if lengths == "fixed" else draw.randint(128, 256) for _ in range(1024)]
    texts = ["".join(draw.choices("0123456789", k=size)) for size in sizes]
    pq.write_table(
        pa.table({"prompt": texts, "answer": ["1"] * len(texts), "data_source": ["none"] * len(texts)}), file
    )


def job(options: argparse.Namespace, model: Path, data: Path) -> dict[str, Any]:
    gpu = options.device == "gpu"
    adapters = {"rank": options.lora, "alpha": options.lora, "sync": options.lora_sync}
    algorithm: dict[str, Any] = {"advantage": "grpo", "kl": {"coefficient": options.kl}}
    if options.staleness:
        algorithm |= {"rolloutCorrection": {"importanceSampling": "token"}}
    spec = {
        "model": {"path": str(model), "dtype": "bfloat16" if gpu else "float32"}
        | ({"lora": adapters} if options.lora else {}),
        "data": {"train": [str(data / "train.parquet")], "maxPromptTokens": 256},
        "rewards": [{"python": {"path": str(data / "reward.py")}}],
        "algorithm": algorithm,
        "train": {
            "steps": options.steps + 1,
            "promptsPerStep": options.prompts,
            "samplesPerPrompt": SAMPLES,
            "staleness": options.staleness,
            "tokensPerMicroBatch": micro_batch(options),
        },
        "trainer": {
            "device": options.device,
            "processesPerNode": options.gpus,
            "parallelism": {
                "tensor": options.tensor,
                "pipeline": options.pipeline,
                "expert": options.expert,
            },
            "recompute": {"granularity": "full"} if options.recompute else {},
            "offload": {
                "parameters": options.offload,
                "gradients": options.offload,
                "optimizer": options.offload and not options.optimizer_on_host,
                "update": options.optimizer_on_host,
            },
        },
        "rollout": rollout(options),
        "checkpoint": {"path": str(data / "run"), "everySteps": 0, "exportHuggingFace": False},
    }
    if options.reference == "own":
        apart = {"processesPerNode": options.gpus, "parallelism": {"tensor": options.tensor}}
        spec["reference"] = apart | {"tokensPerMicroBatch": micro_batch(options)}
    return spec


def micro_batch(options: argparse.Namespace) -> int:
    """Tokens of one."""
    return 16384 if options.size == "1.5b" else 8192


def rollout(options: argparse.Namespace) -> dict[str, Any]:
    arguments = server_memory(options)
    if options.quantization:
        arguments["quantization"] = options.quantization
    longest = options.max_tokens or (1024 if options.lengths == "fixed" else 2048)
    return {
        "placement": options.placement,
        "sampling": {"maxTokens": longest},
        "tensorParallel": options.server_tensor or options.tensor,
        "serversPerGpu": options.servers_per_gpu,
        "vllmArgs": arguments,
        "exact": options.exact,
    } | ({"replicas": options.replicas} if options.placement == "separate" else {})


def server_memory(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of vLLM."""
    if options.cache_gib:
        return {"kv-cache-memory-bytes": int(options.cache_gib * 2**30)}
    share = options.share or (0.9 if options.placement == "separate" else SHARES.get(options.size, 0.3))
    return {"gpu-memory-utilization": share} if options.device == "gpu" else {}


if __name__ == "__main__":
    sys.exit(main())
