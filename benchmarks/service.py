"""What a loop of one's own costs: the same work by the built-in loop and by a script of the official SDK, on this machine.

    python -m benchmarks.service [SEEDS] [--device cpu] [--rounds 2] [--sync merged] [--steps 20] [--prompts 16 64] [--samples 16]

Both learn the arithmetic example by GRPO with adapters of rank 16, one trainer, one server, and no overlap of sampling and training. They take turns:
one after the other in the first round, in the other order in the next one, and so on, each time from the beginning, so that what else the machine
does falls on both. On GPUs the model has 126 M parameters, and trainer and server have a GPU each. The server of the built-in loop gets whole
models, and with `--sync adapters` adapters alone, as a service's server does.

Prints for each run the median seconds of a step after the first three, tokens per second, the mean reward of the first and last five steps, and the
machine's load; and for each seed and number of prompts in a step the ratio of the tokens per second, of all rounds and of each. The seconds of the
script are those of its calls: snapshot and sampler, samples, pass, optimizer step.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

import pyarrow.parquet as pq
import tinker
import yaml
from transformers import AutoTokenizer

from benchmarks.learning import call
from e2e.job import EXAMPLES, example, merge, series

SKIPPED = 3
"""Steps in which processes still warm up."""
RANK, LEARNING_RATE = 16, 2e-3
SECTIONS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "gpu": {
        "model": {"dtype": "bfloat16"},
        "trainer": {"device": "gpu"},
        "rollout": {"vllmArgs": {"gpu-memory-utilization": 0.3}},
    },
}
"""Of both manifests, by device."""
ARCHITECTURES = {"cpu": "qwen2", "gpu": "qwen2_large"}
"""Of examples/arithmetic/prepare.py."""
SECONDS = 900


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.service")
    parser.add_argument("seeds", type=int, nargs="?", default=1)
    parser.add_argument("--device", choices=[*SECTIONS], default="cpu")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sync", choices=("merged", "adapters"), default="merged")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, nargs="+", default=[16], help="of a step")
    parser.add_argument("--samples", type=int, default=16)
    options = parser.parse_args()
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            data = Path(scratch) / "data"
            made = ["--seed", str(seed), "--architecture", ARCHITECTURES[options.device]]
            made += ["--set", f"trainer.device={options.device}"]
            call(str(EXAMPLES / "arithmetic" / "prepare.py"), str(data), *made)
            for prompts in options.prompts:
                compare(data, argparse.Namespace(**vars(options) | {"prompts": prompts}), seed)


def compare(data: Path, options: argparse.Namespace, seed: int) -> None:
    """Have both do the work in each round, and print what each took."""
    loops = {"built-in": built_in, "script": by_script}
    rates: dict[str, list[float]] = {who: [] for who in loops}
    for turn in range(options.rounds):
        order = list(loops) if turn % 2 == 0 else list(reversed(loops))
        for who in order:
            for kept in ("run", "service"):
                shutil.rmtree(data / kept, ignore_errors=True)
            measured = loops[who](data, options, seed)
            rates[who].append(rate(measured))
            report(who, seed, measured)
    ratios = [script / own for own, script in zip(rates["built-in"], rates["script"], strict=True)]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    overall = mean(rates["script"]) / mean(rates["built-in"])
    of = f"seed {seed}, {options.prompts} prompts in a step"
    print(f"{of}: script / built-in {overall:.2f} of the tokens per second ({each})", flush=True)


def report(who: str, seed: int, found: dict[str, list[float]]) -> None:
    seconds = {name: median(values[SKIPPED:]) for name, values in found.items() if name not in ("tokens", "reward")}
    rewards = found["reward"]
    parts = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items())
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    learnt = f"reward {first:.3f} -> {last:.3f}; load {os.getloadavg()[0]:.1f}"
    print(f"seed {seed} {who:9s} {rate(found):7.0f} tokens/s; seconds: {parts}; {learnt}", flush=True)


def rate(found: dict[str, list[float]]) -> float:
    """Tokens per second."""
    return sum(found["tokens"][SKIPPED:]) / sum(found["step"][SKIPPED:])


def built_in(data: Path, options: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    manifest = example(
        "built-in",
        model={"lora": {"rank": RANK, "alpha": 32, "sync": options.sync}},
        data={"seed": seed, "validation": None},
        algorithm={"kl": None},
        evaluation=None,
        train={
            "steps": options.steps,
            "promptsPerStep": options.prompts,
            "samplesPerPrompt": options.samples,
            "optimizer": {"learningRate": LEARNING_RATE},
        },
        trainer={"nodes": 1, "parallelism": None},
        rollout={"replicas": 1},
        checkpoint={"everySteps": options.steps},
    )
    manifest["spec"] = merge(manifest["spec"], SECTIONS[options.device])
    file = data / "built-in.yaml"
    file.write_text(yaml.safe_dump(manifest))
    call("-m", "rljob_trainer", "run", str(file), "--mount", f"/data={data}")
    log = (data / "run/metrics.jsonl").read_text()
    names = {
        "step": "time/step",
        "generate": "time/generate",
        "train": "time/train",
        "sync": "time/sync",
        "reward": "reward/mean",
    }
    found = {name: list(series(log, metric).values()) for name, metric in names.items()}
    rates = list(series(log, "perf/tokens_per_s").values())
    return found | {"tokens": [rate * seconds for rate, seconds in zip(rates, found["step"], strict=True)]}


def by_script(data: Path, options: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    service = yaml.safe_load((EXAMPLES / "service/service.yaml").read_text())
    service["spec"] = merge(service["spec"], SECTIONS[options.device])
    with serving(service, data) as url:
        return Loop(url, data, options, seed).run()


@contextmanager
def serving(service: dict[str, Any], data: Path) -> Iterator[str]:
    """The address of a service on this machine, by its manifest. `data` becomes /data, and holds its output."""
    file, output = data / "service.yaml", data / "output"
    file.write_text(yaml.safe_dump(service))
    command = [sys.executable, "-u", "-m", "rljob_trainer", "run", str(file), f"--mount=/data={data}", "--port=0"]
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not (address := re.search(r"TINKER_BASE_URL=(\S+)", output.read_text())):
            assert process.poll() is None, output.read_text()
            time.sleep(0.2)
        yield address[1]
    except BaseException:
        print("\n".join(output.read_text().splitlines()[-100:]), flush=True)
        raise
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


class Loop:
    """A script's loop: GRPO by importance sampling."""

    def __init__(self, url: str, data: Path, options: argparse.Namespace, seed: int) -> None:
        os.environ["TINKER_TELEMETRY"] = "0"
        self._types, self._options = tinker.types, options
        self._tokenizer = AutoTokenizer.from_pretrained(data / "model")
        self._service = tinker.ServiceClient(base_url=url, api_key="tml-any")
        created = self._service.create_lora_training_client("arithmetic", rank=RANK, seed=seed, train_unembed=False)
        self._training = created.result(timeout=SECONDS)
        rows = pq.read_table(data / "data/train.parquet").to_pylist()
        self._rows = rows[seed:] + rows[:seed]
        self._seconds = defaultdict[str, list[float]](list)

    def run(self) -> dict[str, list[float]]:
        for step in range(self._options.steps):
            begun = time.perf_counter()
            self._step(self._rows[step * self._options.prompts :][: self._options.prompts])
            self._seconds["step"].append(time.perf_counter() - begun)
        self._service.close("success").result()
        return dict(self._seconds)

    def _step(self, rows: list[dict[str, Any]]) -> None:
        sampler = self._timed("snapshot", self._training.save_weights_and_get_sampling_client().result)
        params = self._types.SamplingParams(max_tokens=8, temperature=1.0)
        prompts = [self._tokenizer.encode(row["prompt"]) for row in rows]
        asked = [sampler.sample(self._types.ModelInput.from_ints(p), self._options.samples, params) for p in prompts]
        groups = self._timed("samples", lambda: [future.result().sequences for future in asked])
        data, rewards = list[Any](), list[float]()
        for prompt, row, group in zip(prompts, rows, groups, strict=True):
            scored = [float(self._text(sample) == row["answer"]) for sample in group]
            mean = sum(scored) / len(scored)
            deviation = (sum((score - mean) ** 2 for score in scored) / len(scored)) ** 0.5
            rewards += scored
            data += [
                self._datum(prompt, sample, (score - mean) / (deviation + 1e-6))
                for sample, score in zip(group, scored, strict=True)
            ]
        tokens = sum(len(sample.tokens) for group in groups for sample in group)
        learnt = self._training.forward_backward(data, "importance_sampling")
        adam = self._types.AdamParams(learning_rate=LEARNING_RATE, grad_clip_norm=1.0)
        stepped = self._training.optim_step(adam)
        self._timed("pass", learnt.result)
        self._timed("optimizer", stepped.result)
        self._seconds["tokens"].append(float(tokens + self._options.samples * sum(map(len, prompts))))
        self._seconds["reward"].append(sum(rewards) / len(rewards))

    def _timed(self, name: str, call: Any) -> Any:
        begun = time.perf_counter()
        found = call()
        self._seconds[name].append(time.perf_counter() - begun)
        return found

    def _text(self, sample: Any) -> str:
        return str(self._tokenizer.decode(sample.tokens, skip_special_tokens=True))

    def _datum(self, prompt: list[int], sample: Any, advantage: float) -> Any:
        before, tokens = len(prompt) - 1, [*prompt, *sample.tokens]
        inputs: dict[str, Any] = {
            "target_tokens": tokens[1:],
            "logprobs": [0.0] * before + list(sample.logprobs),
            "advantages": [0.0] * before + [advantage] * len(sample.tokens),
        }
        return self._types.Datum(model_input=self._types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


if __name__ == "__main__":
    main()
