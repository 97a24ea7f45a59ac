"""Ranks and driver as the launcher starts them, on recorded batches: real megatron, no rollouts."""

import functools
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extra import extra_but
from rljob_api import names
from rljob_api.metrics import METRICS
from rljob_api.protocol import Failure
from rljob_api.spec.common import Source
from rljob_trainer.checkpoint.manifest import read_manifest
from rljob_trainer.driver.buffer.batch_files import replay
from rljob_trainer.reporting.samples import write_samples
from rljob_trainer.sources.fetch import fetch
from trainer.rank.job import ALGORITHMS, SECONDS, STEPS, WORLD, Job, Running, wait_for

pytestmark = pytest.mark.slow


class Words:
    """A token is a word."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(f" {token}" for token in token_ids)


@pytest.fixture(scope="module")
def undisturbed(material, tmp_path_factory) -> Callable[[str], tuple[Job, Running]]:
    """The run of one of ALGORITHMS, made once."""

    @functools.cache
    def run(algorithm: str) -> tuple[Job, Running]:
        directory = tmp_path_factory.mktemp(algorithm)
        exports = {"exportEverySteps": 2, "keepExports": 1, "upload": f"file://{directory}/store"}
        checkpoint = {"path": str(directory / "run"), "everySteps": 2} | exports
        job = Job(material, directory, checkpoint=checkpoint, **ALGORITHMS[algorithm])
        for step in range(1, STEPS + 1):
            write_samples(job.root, replay(material / "batches", step, 1.0), Words(), {})
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


def test_the_memory_of_every_phase_is_measured(uninterrupted):
    """As rank 0 has it after two steps, beside the plan."""
    job, _ = uninterrupted
    peaks = {name: size for m in job.metrics() for name, size in m.items() if name.startswith("memory/")}
    assert peaks.keys() == {name for name in METRICS if name.startswith("memory/")}
    assert all(2**27 < size < 2**34 for size in peaks.values()), "a process with torch and megatron"


def test_a_run_leaves_checkpoints_an_export_and_its_account(uninterrupted):
    job, running = uninterrupted
    progress = running.progress()
    assert running.outcome() == "succeeded"
    assert [c.step for c in progress.checkpoints] == [2, 4, 5]
    assert [m["step"] for m in job.metrics() if "time/save" in m] == [2, 4, 5]
    assert (progress.step, progress.started_from, [p.step for p in progress.history]) == (5, 0, [1, 2, 3, 4, 5])
    assert progress.checkpoints[-1].digest == progress.digest != ""
    assert progress.checkpoints[-1].layout == "tp2-pp1-dp1"
    assert (Path(progress.export) / "model.safetensors").is_file()


def test_every_token_of_a_sample_gets_the_trainers_log_probability_before_the_step(uninterrupted):
    """Batches were recorded under the model that the first step begins with."""
    job, _ = uninterrupted
    for step in range(1, STEPS + 1):
        samples = [json.loads(line) for line in names.samples_file(job.root, step).read_text().splitlines()]
        tokens = [token for sample in samples for token in sample["segments"][1]["tokens"]]
        assert len(samples) == 16 and all(len(token) == 3 and token[2] <= 0 for token in tokens)
        differences = [abs(trainer - rollout) for _, rollout, trainer in tokens]
        assert max(differences) < 2e-4 if step == 1 else max(differences) > 1e-3, "the policy learns"


def test_spans_say_what_the_ranks_did_from_the_end_of_a_step_to_that_of_the_next(uninterrupted):
    job, _ = uninterrupted
    seconds = {m["step"]: m["time/step"] for m in job.metrics() if "time/step" in m}
    for step in range(1, STEPS + 1):
        (line,) = names.spans_file(job.root, step).read_text().splitlines()
        spans = {
            resource["resource"]["attributes"][0]["value"]["stringValue"]: resource["scopeSpans"][0]["spans"]
            for resource in json.loads(line)["resourceSpans"]
        }
        (whole,) = (span for span in spans["driver"] if span["name"] == f"step {step}")
        assert length(whole) == pytest.approx(seconds[step], abs=0.5)
        did = [span["name"] for span in spans["trainer"]]
        assert did[-2:] == ["scoring", "training"] and ("saving" in did) == (step - 1 in (2, 4))
    assert "saving" in names.spans_file(job.root, STEPS + 1).read_text(), "what came after the last step"


def length(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def test_exports_of_steps_are_kept_by_their_number_and_uploads_are_complete_at_the_end(uninterrupted):
    job, running = uninterrupted
    store = job.root.parent / "store"
    assert [d.name for d in names.exports_dir(job.root).iterdir()] == ["step_4"]
    assert [m["step"] for m in job.metrics() if "time/upload" in m] == [2, 4, 5]
    for checkpoint in running.progress().checkpoints:
        directory = names.step_dir(store, checkpoint.step)
        manifest = read_manifest(directory)
        assert manifest and manifest.damage(directory) == ""
    for export in (Path("exports/step_4"), Path("global_step_5/huggingface")):
        ours, theirs = (root / export / "model.safetensors" for root in (job.root, store))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_job_resumes_from_what_another_has_uploaded(material, tmp_path, uninterrupted):
    """On a volume of its own, to which the checkpoint is fetched before the job begins."""
    job, _ = uninterrupted
    address = f"file://{job.root.parent}/store/global_step_4"
    source = Source(source=address, path=str(tmp_path / "volume/global_step_4"), files=["!huggingface/*"])
    fetch("spec.data.sources[0]", source, lambda there, total: None)
    checkpoint = {"path": str(tmp_path / "run"), "everySteps": 0, "resumeFrom": source.path}
    other = Job(material, tmp_path, checkpoint=checkpoint | {"exportHuggingFace": False})
    running = other.start(1)
    assert running.wait() == [0, 0, 0]
    assert running.progress().started_from == 4
    assert other.losses() == {5: job.losses()[5]}


@pytest.mark.parametrize("algorithm", extra_but(("grpo",), ALGORITHMS))
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

    second = job.start(2, resume=1)
    assert second.wait() == [0, 0, 0]
    assert second.progress().started_from == 1
    assert job.losses() == uninterrupted[0].losses()


def refused(running: Running) -> Failure:
    assert all(wait_for(rank) for rank in running.ranks)
    running.driver.kill()  # as the launcher does
    failure = running.failures()["error-0"]
    assert failure.kind == "configuration"
    return failure


@pytest.mark.extra
def test_a_named_checkpoint_is_gone_on_from_in_another_layout(material, tmp_path, uninterrupted):
    """A periodic one, saved while training continued, and the drained one. A flipped bit is found by whoever reads it."""
    (tmp_path / "first").mkdir()
    job = Job(material, tmp_path / "first", checkpoint={"path": str(tmp_path / "first/run"), "everySteps": 1})
    first = job.start(1)
    until_step(job, 2)
    job.tell(1, "drain")
    assert first.wait() == [0, 0, 0]
    *_, periodic, drained = first.progress().checkpoints

    def named(path: str, work: str) -> Job:
        (tmp_path / work).mkdir()
        checkpoint = {"path": str(tmp_path / work / "run"), "everySteps": 0, "resumeFrom": path}
        layout = {"device": "cpu", "processesPerNode": WORLD}
        return Job(material, tmp_path / work, trainer=layout, checkpoint=checkpoint)

    file = max(Path(drained.path).rglob("*.distcp"))
    with flipped(file):
        failure = refused(named(drained.path, "damaged").start(1))
    assert f"the content of megatron/{file.name} is not" in failure.message

    expected = uninterrupted[0].losses()
    for number, checkpoint in enumerate((periodic, drained)):
        other = named(checkpoint.path + "/", f"second-{number}")
        second = other.start(1)
        assert second.wait() == [0, 0, 0]
        assert second.progress().started_from == checkpoint.step
        after = {s: pytest.approx(losses, rel=1e-3, abs=1e-5) for s, losses in expected.items() if s > checkpoint.step}
        assert other.losses() == after
        manifest = read_manifest(Path(second.progress().checkpoints[-1].path))
        assert manifest and manifest.data["consumed"] == 20


@contextmanager
def flipped(file: Path) -> Iterator[None]:
    """One bit in the middle is wrong inside."""
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    try:
        yield
    finally:
        file.write_bytes(data)


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
    assert not [d for d in tmp_path.rglob("global_step_*") if ".tmp-" in d.name], "nothing half-written stays"
