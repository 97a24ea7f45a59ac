"""Servers in the trainer's own process tree: begun, put to sleep, updated and ended with the attempt."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from trainer.rank.test_ahead import SECONDS, Run, manifest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "trainer",
    [
        {"nodes": 2, "parallelism": {"tensor": 2}},
        pytest.param({"processesPerNode": 2, "parallelism": {"pipeline": 2}}, marks=pytest.mark.extra),
    ],
    ids=["a copy over two pods", "a stage of each rank of a pod"],
)
def test_a_job_trains_with_the_servers_of_all_its_pods_and_leaves_none_behind(
    tmp_path: Path, trainer: dict[str, Any]
) -> None:
    job, run = manifest(), Run(tmp_path)
    job["spec"] |= {"algorithm": {}, "rollout": {"placement": "colocated"}}
    job["spec"]["rollout"] |= {"sampling": {"maxTokens": 1}}
    job["spec"]["trainer"] |= trainer
    job["spec"]["train"] |= {"staleness": 0, "steps": 3, "batches": {}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert run.start().wait(SECONDS) == 0
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2, 3]
    assert [m["rollout/replicas"] for m in metrics.values()] == [2.0, 2.0, 2.0]
    assert max(m["train_rollout/log_prob_diff_max"] for m in metrics.values()) < 1e-3
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in json.dumps(p.info["cmdline"])]


@pytest.mark.extra
def test_servers_that_share_a_rank_each_generate_and_train_to_the_bits_of_one(tmp_path: Path) -> None:
    """Each gets every policy: log-probabilities of its samples are the trainer's."""
    one, two = (finished(tmp_path / str(servers), servers) for servers in (1, 2))
    for step in range(1, 4):
        assert generating(one, step) == {"ahead-trainer-0-server-0"}
        assert generating(two, step) == {"ahead-trainer-0-server-0", "ahead-trainer-0-server-1"}
        alone, shared = one.metrics()[step], two.metrics()[step]
        assert (alone["rollout/replicas"], shared["rollout/replicas"]) == (1.0, 2.0)
        assert shared["train_rollout/log_prob_diff_max"] < 1e-3 and shared["train/grad_norm"] > 0
        assert {name: shared[name] for name in alone if name.startswith(TRAINED)} == {
            name: value for name, value in alone.items() if name.startswith(TRAINED)
        }
        samples = [sorted((run.root / f"samples/step_{step}.jsonl").read_text().splitlines()) for run in (one, two)]
        assert samples[0] == samples[1]


TRAINED = ("train/", "train_rollout/", "reward/", "response_length/")
"""Beginnings of names of metrics that no server's speed changes."""


def finished(directory: Path, servers: int) -> Run:
    """A run of three steps, whose one rank has so many servers."""
    directory.mkdir()
    job, run = manifest(), Run(directory)
    job["spec"] |= {"algorithm": {}, "rollout": {"placement": "colocated", "serversPerGpu": servers}}
    job["spec"]["rollout"] |= {"sampling": {"maxTokens": 1}}
    job["spec"]["train"] |= {"staleness": 0, "steps": 3, "batches": {}}
    (directory / "job.yaml").write_text(yaml.safe_dump(job))
    assert run.start().wait(SECONDS) == 0
    return run


def generating(run: Run, step: int) -> set[str]:
    """Servers that generated in a step."""
    text = (run.root / f"spans/step_{step}.jsonl").read_text()
    return set(re.findall(r"ahead-trainer-\d+-server-\d+", text))


@pytest.mark.extra
def test_an_engine_that_is_killed_or_stopped_ends_the_attempt_with_its_cause_and_the_next_one_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """vLLM's API server answers on without its engine; with SIGSTOP nothing even ends. maxRestarts allows the first of the two."""
    job, run = manifest(), Run(tmp_path)
    job["spec"] |= {"algorithm": {}, "lifecycle": {"maxRestarts": 1}}
    job["spec"]["rollout"] = {"placement": "colocated", "sampling": {"maxTokens": 1}}
    job["spec"]["checkpoint"]["everySteps"] = 1
    job["spec"]["train"] |= {"staleness": 0, "steps": 10_000, "batches": {}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    process = run.start()
    try:
        wait(process, lambda: len(run.metrics()) >= 3, "three steps")
        engine(process).send_signal(signal.SIGKILL)
        trained = max(run.metrics())
        wait(process, lambda: "attempt 2" in capfd.readouterr().out, "another attempt")
        wait(process, lambda: max(run.metrics()) > trained + 3, "more steps")
        engine(process).send_signal(signal.SIGSTOP)
        assert process.wait(SECONDS) == 1
    finally:
        process.kill()
        process.wait()
    assert sorted(run.metrics()) == list(range(1, max(run.metrics()) + 1))
    said = "".join(capfd.readouterr())
    assert "attempt 2 failed, and spec.lifecycle.maxRestarts is 1: ServerLost: the server was killed: " in said


def engine(run: subprocess.Popen[bytes]) -> psutil.Process:
    """The only one of the job."""
    below = psutil.Process(run.pid).children(recursive=True)
    (found,) = (p for p in below if " ".join(p.cmdline()).startswith("VLLM::EngineCore"))
    return found


def wait(run: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert run.poll() is None and time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.2)
