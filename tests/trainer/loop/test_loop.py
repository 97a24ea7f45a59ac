"""Ranks and driver as the launcher starts them, on recorded batches: real megatron, no rollouts."""

import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
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
MEASURES = ("train/loss", "train/grad_norm", "train/kl", "train/entropy", "critic/loss", "critic/grad_norm")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"algorithm": {"advantage": "gae", "kl": {"coefficient": 0.1, "where": "reward"}}, "critic": {}},
}


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
        record(root, replace(batch, metrics=batch_metrics(batch.samples)))
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

    def start(self, attempt: int, resume: int | None = None, before: Callable[[int], None] = bool) -> "Running":
        """`before` runs in each rank's process, before the rank does."""
        directory = self._directory / f"attempt-{attempt}"
        directory.mkdir()
        self.tell(attempt, "run", resume)
        return Running(directory, before)

    def tell(self, attempt: int, command: Any, resume: int | None = None) -> None:
        control = Control(
            name="demo", namespace="n", job_uid="u", attempt=attempt, command=command, resume=Resume(policy="auto", step=resume), spec=self._spec
        )  # fmt: skip
        directory = self._directory / f"attempt-{attempt}"
        (directory / "control.tmp").write_text(control.dump_json())
        (directory / "control.tmp").replace(directory / "control.json")

    def losses(self) -> dict[int, list[float]]:
        """Everything that training computed, by step."""
        return {m["step"]: [m[name] for name in MEASURES if name in m] for m in self.metrics() if "train/loss" in m}

    def metrics(self) -> list[dict[str, Any]]:
        file = names.metrics_file(self.root)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


class Running:
    """The processes of one attempt."""

    def __init__(self, directory: Path, before: Callable[[int], None]):
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
        self.ranks = [_fork_rank(r, shared, before) for r in range(WORLD)]

    def wait(self) -> list[int]:
        """Exit codes of driver and ranks."""
        return [self.driver.wait(SECONDS), *(_wait(rank) for rank in self.ranks)]

    def progress(self) -> Progress:
        return Progress.model_validate_json((self._directory / "progress.json").read_text())

    def outcome(self) -> str:
        return json.loads((self._directory / "outcome.json").read_text())["result"]

    def failures(self) -> dict[str, Failure]:
        return {f.stem: Failure.model_validate_json(f.read_text()) for f in self._directory.glob("error-*.json")}


def _fork_rank(number: int, environment: dict[str, str], before: Callable[[int], None]) -> int:
    """As the launcher does: from a process that has imported everything."""
    child = os.fork()
    if child:
        return child
    before(number)
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
def undisturbed(material, tmp_path_factory) -> Callable[[str], tuple[Job, Running]]:
    """The run of one of ALGORITHMS, made once."""

    @functools.cache
    def run(algorithm: str) -> tuple[Job, Running]:
        job = Job(material, tmp_path_factory.mktemp(algorithm), **ALGORITHMS[algorithm])
        running = job.start(1)
        assert running.wait() == [0, 0, 0]
        return job, running

    return run


@pytest.fixture
def uninterrupted(undisturbed) -> tuple[Job, Running]:
    return undisturbed("grpo")


def until_step(job: Job, step: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not any(m["step"] >= step and "train/loss" in m for m in job.metrics()):
        assert time.monotonic() < deadline, "the step never came"
        time.sleep(0.02)


def test_a_run_leaves_checkpoints_an_export_and_its_account(uninterrupted):
    job, running = uninterrupted
    progress = running.progress()
    assert running.outcome() == "succeeded"
    assert [(c.step, c.reshardable) for c in progress.checkpoints] == [(2, False), (4, False), (5, True)]
    assert [m["step"] for m in job.metrics() if "time/save" in m] == [2, 4, 5]
    assert (progress.step, progress.started_from, [p.step for p in progress.history]) == (5, 0, [1, 2, 3, 4, 5])
    assert progress.checkpoints[-1].digest == progress.digest != ""
    assert progress.checkpoints[-1].layout == "tp2-pp1-dp1"
    assert (Path(progress.export) / "model.safetensors").is_file()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_a_killed_rank_all_is_bit_equal_to_an_uninterrupted_run(material, tmp_path, undisturbed, algorithm):
    job, (whole, ran) = Job(material, tmp_path, **ALGORITHMS[algorithm]), undisturbed(algorithm)
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
    assert second.progress().started_from in (0, 2, 4)  # what was complete when the rank was killed
    assert job.losses() == whole.losses()
    assert second.progress().digest == ran.progress().digest


def test_a_drained_attempt_saves_its_step_and_the_next_one_may_go_back_further(material, tmp_path, uninterrupted):
    job = Job(material, tmp_path, checkpoint={"path": str(tmp_path / "run"), "everySteps": 1, "keepLast": 5})
    first = job.start(1)
    until_step(job, 2)
    job.tell(1, "drain")
    assert first.wait() == [0, 0, 0]
    assert first.outcome() == "drained"
    drained = first.progress()
    assert drained.checkpoints[-1].step == drained.step >= 2
    assert drained.checkpoints[-1].reshardable

    second = job.start(2, resume=1)
    assert second.wait() == [0, 0, 0]
    assert second.progress().started_from == 1
    assert job.losses() == uninterrupted[0].losses()


def test_a_named_checkpoint_is_gone_on_from_in_another_layout_if_it_was_saved_for_any(
    material, tmp_path, uninterrupted
):
    """The drained one is; the periodic ones before it are not."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    job = Job(material, tmp_path / "first", checkpoint={"path": str(tmp_path / "first/run"), "everySteps": 1})
    first = job.start(1)
    until_step(job, 2)
    job.tell(1, "drain")
    assert first.wait() == [0, 0, 0]
    saved = first.progress().checkpoints
    layout = {"device": "cpu", "processesPerNode": WORLD}
    checkpoint = {"path": str(tmp_path / "second/run"), "everySteps": 0}

    fast = Job(material, tmp_path / "second", trainer=layout, checkpoint=checkpoint | {"resumeFrom": saved[-2].path})
    refused = fast.start(1)
    assert all(_wait(rank) for rank in refused.ranks)
    refused.driver.kill()  # as the launcher does
    failure = refused.failures()["error-0"]
    assert (failure.kind, failure.field) == ("configuration", "spec.trainer.parallelism")
    assert f"set spec.checkpoint.resumeFrom to {saved[-1].path}" in failure.message

    whole = Job(
        material, tmp_path / "second", trainer=layout, checkpoint=checkpoint | {"resumeFrom": saved[-1].path + "/"}
    )
    second = whole.start(2)
    assert second.wait() == [0, 0, 0]
    assert second.progress().started_from == saved[-1].step
    expected = uninterrupted[0].losses()
    assert whole.losses() == {s: pytest.approx(expected[s], rel=1e-3, abs=1e-5) for s in expected if s > saved[-1].step}
    assert (
        json.loads((names.step_dir(whole.root, STEPS) / "manifest.json").read_text())["data"]["consumed"] == 4 * STEPS
    )


def test_a_save_that_fails_beside_training_ends_the_attempt_with_its_reason(material, tmp_path):
    def limit(rank: int) -> None:
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    running = Job(material, tmp_path).start(1, before=limit)
    assert running.wait()[1:] == [1, 1]
    failures = running.failures()
    assert (failures["error-0"].kind, failures["error-1"].kind) == ("collective", "application")
    assert "rank 1 could not write its part of the checkpoint of step 2" in failures["error-1"].message
    assert "File too large" in failures["error-1"].message
