"""A run whose server has two pods draws, scores and learns the same as one whose server has one pod: from the same seeds, step by step.

Each run is a process with real vLLM and Megatron. Responses are sampled by seeds, and a reward that says how many of a response's digits are even
differs between any two steps of a policy that learns. So equal samples of a step say that both servers had the same policy.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rljob_api import names
from rljob_trainer.driver.buffer.batch_files import replay
from rljob_trainer.wire.batch import Batch
from script import loaded

pytestmark = [pytest.mark.slow, pytest.mark.extra]
EXAMPLE = Path(__file__).parents[3] / "examples" / "arithmetic"
STEPS, PROMPTS, SAMPLES, SECONDS = 8, 8, 8, 600
LOG_PROBS = 1e-5
"""How far two cuts of a model may be apart in float32: each adds up the same products in another order. On CPU it was 2e-6."""
REWARD = "def reward(response):\n    return sum(c in '02468' for c in response) / 8\n"
CUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("qwen2", {"tensorParallel": 2}),
    "stages": ("qwen2", {"pipelineParallel": 2}),
    "copies": ("qwen3_moe", {"dataParallel": 2, "expertParallel": True}),
}
"""The model, and how a server cuts it."""


@dataclass(frozen=True)
class Curve:
    """What a run has left."""

    batches: list[Batch]
    """One a step."""
    lines: list[dict[str, float]]
    """Metrics, one line a step."""
    logs: set[str]
    """Names of the pods that ran."""

    def of(self, metric: str) -> list[float]:
        return [line[metric] for line in self.lines]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Curve]:
    """A run with a server of a model that is cut in such a way."""

    @cache
    def volume(architecture: str) -> Path:
        """With a random model, problems and the reward."""
        data = tmp_path_factory.mktemp(architecture)
        loaded(EXAMPLE / "prepare.py").write_start(data, architecture, 0)
        (data / "reward.py").write_text(REWARD)
        return data

    def learnt(name: str, architecture: str, **rollout: Any) -> Curve:
        data = volume(architecture)
        work = data / f"{name}-work"
        manifest = data / f"{name}.yaml"
        manifest.write_text(yaml.safe_dump(job(name, **rollout)))
        command = [sys.executable, "-m", "rljob_trainer", "run", manifest, "--mount", f"/data={data}", "--work", work]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=SECONDS)
        logs = {log.stem: log.read_text()[-3000:] for log in sorted(work.glob("*.log"))}
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs.values()])
        lines = [json.loads(line) for line in names.metrics_file(data / name).read_text().splitlines()]
        batches = [replay(data / name / "batches", step, 1.0) for step in range(1, STEPS + 1)]
        return Curve(batches, [line for line in lines if "train/loss" in line], set(logs))

    return learnt


def job(name: str, **rollout: Any) -> dict[str, Any]:
    """The arithmetic example with one trainer, one server, a random model and a reward of its own."""
    manifest: dict[str, Any] = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    spec["model"]["path"] = "/data/untrained"
    spec["rewards"] = [{"python": {"path": "/data/reward.py", "function": "reward"}}]
    spec["train"] |= {
        "steps": STEPS,
        "promptsPerStep": PROMPTS,
        "samplesPerPrompt": SAMPLES,
        "batches": {"record": True},
    }
    spec["train"]["optimizer"] = {"learningRate": 3.0e-4}
    spec["trainer"] = {"device": "cpu"}
    spec["rollout"] |= {"replicas": 1} | rollout
    spec["checkpoint"] = {"path": f"/data/{name}"}
    del spec["evaluation"]
    return manifest


@pytest.fixture(scope="module")
def whole(run: Callable[..., Curve]) -> Callable[[str], Curve]:
    """By architecture, the run with a server of one pod and one worker."""
    return cache(lambda architecture: run("whole", architecture))


def tokens(batch: Batch) -> list[list[int]]:
    """Prompt and response of each sample."""
    return [sample.tokens.tolist() for sample in batch.samples]


def log_probs(batch: Batch) -> list[float]:
    """Of all tokens, as the server computed them."""
    return [value for sample in batch.samples for value in sample.log_probs.tolist()]


def policies(batch: Batch) -> set[int]:
    """Whose tokens they are."""
    return {int(step) for sample in batch.samples for step in sample.policy_steps[sample.prompt_length :]}


@pytest.mark.parametrize("cut", CUTS)
def test_a_server_of_two_pods_gives_the_curve_of_a_server_of_one(
    run: Callable[..., Curve], whole: Callable[[str], Curve], cut: str
) -> None:
    architecture, settings = CUTS[cut]
    one, two = whole(architecture), run(cut, architecture, nodes=2, **settings)
    assert {f"{cut}-rollout-{i}" for i in range(2)} <= two.logs and "whole-rollout-1" not in one.logs
    for mine, other in zip(one.batches, two.batches, strict=True):
        assert policies(mine) == policies(other) == {mine.step - 1}
        assert len(set(map(tuple, tokens(mine)))) > PROMPTS * SAMPLES / 2, "alike anyway, they would say nothing"
        assert tokens(mine) == tokens(other)
        assert mine.columns.reward.tolist() == other.columns.reward.tolist()
        np.testing.assert_allclose(log_probs(other), log_probs(mine), rtol=0, atol=LOG_PROBS)
    assert two.of("train/loss") == one.of("train/loss"), "of the same samples"
    rewards = one.of("reward/mean")
    assert two.of("reward/mean") == rewards and min(rewards[-2:]) > max(rewards[:2]) + 0.05


def test_an_exact_job_trains_by_the_log_probabilities_of_its_server_to_the_last_bit(
    run: Callable[..., Curve], whole: Callable[[str], Curve]
) -> None:
    difference = "train_rollout/log_prob_diff_max"
    assert run("exact", "qwen2", exact=True).of(difference) == [0.0] * STEPS
    assert min(whole("qwen2").of(difference)) > 0, "equal anyway, they would say nothing"
