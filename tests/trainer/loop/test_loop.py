"""Ranks and driver as the launcher starts them, on recorded batches: real megatron, no rollouts."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_api import names
from rljob_api.protocol import Control, Failure, Progress, Resume
from rljob_trainer import rank
from rljob_trainer.driver.assembly import batch_metrics
from rljob_trainer.driver.recording import record
from trainer.megatron.models import make_batch, make_model

pytestmark = pytest.mark.slow

WORLD, STEPS, SECONDS = 2, 5, 180


@pytest.fixture(scope="module")
def material(tmp_path_factory) -> Path:
    """A model with a tokenizer, a parquet file, and recorded batches."""
    rank.prepare()
    root = tmp_path_factory.mktemp("material")
    model = make_model(root / "model")
    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(10)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="9").save_pretrained(model)
    pq.write_table(
        pa.table({"prompt": ["1 2", "3 4", "5 6"], "answer": ["1"] * 3, "data_source": ["s"] * 3}),
        root / "train.parquet",
    )
    for step in range(1, STEPS + 1):
        batch = make_batch(model, step)
        record(root, replace(batch, metrics=batch_metrics(batch.samples, failed=0)))
    return root


class Job:
    """One job of two ranks in a directory of its own."""

    def __init__(self, material: Path, directory: Path, **changes: Any):
        self.root, self._directory = directory / "run", directory
        self._spec = {
            "model": {"path": str(material / "model"), "dtype": "float32"},
            "data": {"train": [str(material / "train.parquet")]},
            "rewards": [{"rule": "exactMatch"}],
            "algorithm": {"kl": {"coefficient": 0.1}},
            "train": {
                "steps": STEPS,
                "promptsPerStep": 4,
                "samplesPerPrompt": 4,
                "tokensPerMicroBatch": 64,
                "optimizer": {"learningRate": 1e-3},
                "batches": {"replay": str(material / "batches")},
            },
            "trainer": {"device": "cpu", "processesPerNode": WORLD, "parallelism": {"tensor": 2}},
            "rollout": {"replicas": 0},
            "checkpoint": {"path": str(self.root), "everySteps": 2},
            "image": "i",
        } | changes

    def start(self, attempt: int, resume: int | None = None) -> "Running":
        directory = self._directory / f"attempt-{attempt}"
        directory.mkdir()
        self.tell(attempt, "run", resume)
        return Running(directory)

    def tell(self, attempt: int, command: Any, resume: int | None = None) -> None:
        control = Control(
            name="demo", namespace="n", job_uid="u", attempt=attempt, command=command, resume=Resume(policy="auto", step=resume), spec=self._spec
        )  # fmt: skip
        directory = self._directory / f"attempt-{attempt}"
        (directory / "control.tmp").write_text(control.dump_json())
        (directory / "control.tmp").replace(directory / "control.json")

    def losses(self) -> dict[int, list[float]]:
        """Everything that training computed, by step."""
        wanted = ("train/loss", "train/grad_norm", "train/kl", "train/entropy")
        return {m["step"]: [m[name] for name in wanted] for m in self.metrics() if "train/loss" in m}

    def metrics(self) -> list[dict[str, Any]]:
        file = names.metrics_file(self.root)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Running:
    """The processes of one attempt."""

    def __init__(self, directory: Path):
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = os.environ | {
            names.ENV_ATTEMPT_DIR: str(directory),
            names.ENV_ROLLOUT_TOKEN: "t",
            names.ENV_POD_IP: "127.0.0.1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(WORLD),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        self.driver = subprocess.Popen([sys.executable, "-m", "rljob_trainer.driver"], env=shared)
        self.ranks = [_fork_rank(r, shared) for r in range(WORLD)]

    def wait(self) -> list[int]:
        """Exit codes of driver and ranks."""
        return [self.driver.wait(SECONDS), *(_wait(rank) for rank in self.ranks)]

    def progress(self) -> Progress:
        return Progress.model_validate_json((self._directory / "progress.json").read_text())

    def outcome(self) -> str:
        return json.loads((self._directory / "outcome.json").read_text())["result"]

    def failures(self) -> dict[str, Failure]:
        return {f.stem: Failure.model_validate_json(f.read_text()) for f in self._directory.glob("error-*.json")}


def _fork_rank(number: int, environment: dict[str, str]) -> int:
    """As the launcher does: from a process that has imported everything."""
    child = os.fork()
    if child:
        return child
    os.environ.update(environment | {"RANK": str(number), "LOCAL_RANK": str(number)})
    code = 1
    try:
        rank.main()
        code = 0
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a rank did not end")


@pytest.fixture(scope="module")
def uninterrupted(material, tmp_path_factory) -> tuple[Job, Running]:
    job = Job(material, tmp_path_factory.mktemp("uninterrupted"))
    running = job.start(1)
    assert running.wait() == [0, 0, 0]
    return job, running


def until_step(job: Job, step: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not any(m["step"] >= step and "train/loss" in m for m in job.metrics()):
        assert time.monotonic() < deadline, "the step never came"
        time.sleep(0.02)


def test_a_run_leaves_checkpoints_an_export_and_its_account(uninterrupted):
    _, running = uninterrupted
    progress = running.progress()
    assert running.outcome() == "succeeded"
    assert [c.step for c in progress.checkpoints] == [2, 4, 5]
    assert (progress.step, progress.started_from, [p.step for p in progress.history]) == (5, 0, [1, 2, 3, 4, 5])
    assert progress.checkpoints[-1].digest == progress.digest != ""
    assert progress.checkpoints[-1].layout == "tp2-pp1-dp1"
    assert (Path(progress.export) / "model.safetensors").is_file()


def test_after_a_killed_rank_the_losses_are_bit_equal_to_an_uninterrupted_run(material, tmp_path, uninterrupted):
    job = Job(material, tmp_path)
    first = job.start(1)
    until_step(job, 3)
    os.kill(first.ranks[1], signal.SIGKILL)
    codes = first.wait()
    assert codes[2] == -signal.SIGKILL and codes[0] != 0 and codes[1] != 0
    assert {name: f.kind for name, f in first.failures().items()} == {
        "error-0": "collective",
        "error-driver": "collective",
    }

    second = job.start(2)
    assert second.wait() == [0, 0, 0]
    assert second.progress().started_from in (2, 4)
    assert job.losses() == uninterrupted[0].losses()
    assert second.progress().digest == uninterrupted[1].progress().digest


def test_a_drained_attempt_saves_its_step_and_the_next_one_may_go_back_further(material, tmp_path, uninterrupted):
    job = Job(material, tmp_path, checkpoint={"path": str(tmp_path / "run"), "everySteps": 1, "keepLast": 5})
    first = job.start(1)
    until_step(job, 2)
    job.tell(1, "drain")
    assert first.wait() == [0, 0, 0]
    assert first.outcome() == "drained"
    drained = first.progress()
    assert drained.checkpoints[-1].step == drained.step >= 2

    second = job.start(2, resume=1)
    assert second.wait() == [0, 0, 0]
    assert second.progress().started_from == 1
    assert job.losses() == uninterrupted[0].losses()
