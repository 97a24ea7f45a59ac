"""One step ahead with everything real: Megatron, vLLM, launchers, a drain and a resume."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api import names
from rljob_trainer.data.order import permutation
from rljob_trainer.driver.buffer.batch_files import replay
from rljob_trainer.wire.batch import Batch
from trainer.ages import token_ages
from trainer.megatron.models import make_model
from trainer.rank.job import whole_lines

pytestmark = pytest.mark.slow

STEPS, DRAINED, PROMPTS, SECONDS = 16, 5, 10, 1200


class Run:
    """A job that learns to say "3", whatever it is asked."""

    def __init__(self, data: Path):
        self._data, self.root = data, data / "run"
        self.processes: list[subprocess.Popen[bytes]] = []
        make_model(data / "model", "qwen3", vocabulary=16)
        words = Tokenizer(models.WordLevel({str(i): i for i in range(16)}, unk_token="0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="15").save_pretrained(data / "model")
        prompts = [f"{i} {i + 1}" for i in range(PROMPTS)]
        pq.write_table(pa.table({"prompt": prompts, "answer": ["3"] * PROMPTS}), data / "train.parquet")
        (data / "job.yaml").write_text(yaml.safe_dump(manifest()))

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "rljob_trainer",
            "run",
            self._data / "job.yaml",
            "--mount",
            f"/data={self._data}",
        ]
        paths = os.pathsep.join(p for p in sys.path if p)
        self.processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}))
        return self.processes[-1]

    def metrics(self) -> dict[int, dict[str, float]]:
        """Those of trained steps, by step."""
        found: dict[int, dict[str, float]] = {}
        for metrics in whole_lines(names.metrics_file(self.root)):
            found.setdefault(metrics.pop("step"), {}).update(metrics)
        return {step: m for step, m in found.items() if "train/loss" in m}

    def batch(self, step: int) -> Batch:
        return replay(self.root / "batches", step, 1.0)


def manifest() -> dict[str, Any]:
    spec = {
        "image": "i",
        "model": {"path": "/data/model", "dtype": "float32"},
        "data": {"train": ["/data/train.parquet"], "maxPromptTokens": 8},
        "rewards": [{"rule": "exactMatch"}],
        "algorithm": {"rolloutCorrection": {"importanceSampling": "token"}},
        "train": {
            "steps": STEPS,
            "staleness": 1,
            "promptsPerStep": 4,
            "samplesPerPrompt": 16,
            "optimizer": {"learningRate": 3e-3},
            "batches": {"record": True},
        },
        "trainer": {"device": "cpu"},
        "rollout": {"replicas": 1, "sampling": {"maxTokens": 1}},
        "checkpoint": {"path": "/data/run", "everySteps": 0, "exportHuggingFace": False},
        "volumes": [{"name": "data", "mountPath": "/data", "source": {"persistentVolumeClaim": {"claimName": "data"}}}],
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "ahead"}, "spec": spec}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    for process in run.processes:
        process.kill()  # what it started goes with it
        process.wait()


def in_order(batch: Batch) -> bool:
    places = [divmod(4 * (batch.step - 1) + i, PROMPTS) for i in range(4)]
    expected = [permutation(PROMPTS, 0, epoch)[place] for epoch, place in places]
    return [s.prompt_index for s in batch.samples] == [index for index in expected for _ in range(16)]


def test_it_learns_and_a_resume_goes_on_in_exactly_the_order_of_the_data(run: Run) -> None:
    first = run.start()
    deadline = time.monotonic() + SECONDS
    while len(run.metrics()) < DRAINED:
        assert first.poll() is None and time.monotonic() < deadline, "the first attempt never came so far"
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(SECONDS) == 130
    drained = max(run.metrics())
    assert DRAINED <= drained < STEPS

    assert run.start().wait(SECONDS) == 0
    metrics = run.metrics()
    assert list(metrics) == list(range(1, STEPS + 1))
    fresh = {step for step, m in metrics.items() if m["train_rollout/policy_age"] == 0}
    # up to two complete batches are in the checkpoint, and may be trained before a server is up that could generate the next one
    assert {1} <= fresh <= {1, drained + 1, drained + 2, drained + 3} and len(fresh) <= 2
    assert {m["train_rollout/policy_age"] for m in metrics.values()} == {0, 1}
    for step in metrics:
        batch = run.batch(step)
        assert in_order(batch)
        assert token_ages(step, batch.samples) == (int(step not in fresh),) * 2
    assert all(metrics[step]["train_rollout/log_prob_diff_mean"] < 1e-3 for step in fresh), (
        "the rollouts' policy is the trainer's"
    )
    # an update without a right answer among its samples moves nothing, which happens to the first once in fifty times
    assert max(metrics[step]["train_rollout/log_prob_diff_mean"] for step in metrics if step not in fresh) > 1e-3, (
        "theirs is one update older"
    )
    probed = {
        step: m["train_rollout/probe_diff_max"] for step, m in metrics.items() if "train_rollout/probe_diff_max" in m
    }
    assert len(probed) >= STEPS - 5 and max(probed.values()) < 1e-3, "what the batches cannot show, a probe does"
    assert metrics[1]["reward/mean"] < 0.3 and metrics[STEPS]["reward/mean"] > 0.5
