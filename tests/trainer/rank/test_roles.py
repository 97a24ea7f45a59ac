"""Whole jobs whose critic, reference and reward model have ranks of their own, as the launchers start them: real megatron, no rollouts."""

import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.checkpoint.manifest import read_manifest
from trainer.megatron.classifiers import make_classifier
from trainer.rank.job import ALGORITHMS, SECONDS, Job, Running

pytestmark = pytest.mark.slow

STEPS = 3
FLOOR = 1e-6
"""As far as losses of other layouts in float32 come apart (tests/trainer/megatron/parity.py)."""
TP2 = {"processesPerNode": 2, "parallelism": {"tensor": 2}}
PP2 = {"processesPerNode": 2, "parallelism": {"pipeline": 2}}
ALONE, DP2 = {"processesPerNode": 1}, {"processesPerNode": 2}
SHARED: dict[str, Any] = {}
PLACES: dict[str, tuple[dict[str, Any], ...]] = {
    "shared": (ALONE, SHARED, SHARED, SHARED),
    "TP1 next to TP2": (TP2, ALONE, ALONE, SHARED),
    "PP2 next to TP1": (ALONE, PP2, SHARED, ALONE),
    "DP2 next to DP1": (ALONE, DP2, DP2, SHARED),
}
"""Of trainer, critic, reference and reward model."""
extra = pytest.mark.extra


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("classifier"))


Make = Callable[..., Job]


@pytest.fixture(scope="module")
def make(material: Path, classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    def made(place: str, **checkpoint: Any) -> Job:
        """A job of PPO whose models are there."""
        directory = tmp_path_factory.mktemp("job")
        trainer, critic, reference, reward = PLACES[place]
        train = {
            "steps": STEPS,
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "miniBatches": 2,
            "tokensPerMicroBatch": 64,
            "optimizer": {"learningRate": 1e-3, "epsilon": 1e-6},
            "batches": {"replay": str(material / "batches")},
        }
        return Job(
            material,
            directory,
            algorithm=ALGORITHMS["ppo"]["algorithm"],
            trainer={"device": "cpu", **trainer},
            critic={"optimizer": {"learningRate": 1e-3, "epsilon": 1e-6}, **critic},
            reference=reference,
            rewards=[{"model": {"path": str(classifier), **reward}}],
            train=train,
            **({"checkpoint": {"path": str(directory / "run")} | checkpoint} if checkpoint else {}),
        )

    return made


@pytest.fixture(scope="module")
def run(make: Make) -> Callable[[str], tuple[Job, Running]]:
    """A job whose models are placed so, run to its end once."""

    @cache
    def ran(place: str) -> tuple[Job, Running]:
        running = (job := make(place)).start(1)
        assert not any(running.wait())
        return job, running

    return ran


def rewards(job: Job) -> list[float]:
    return [m["reward/with_models"] for m in job.metrics() if "train/loss" in m]


@pytest.mark.parametrize(
    "place",
    [
        "TP1 next to TP2",
        pytest.param("PP2 next to TP1", marks=extra),
        pytest.param("DP2 next to DP1", marks=extra),
    ],
)
def test_steps_are_the_same_wherever_critic_reference_and_reward_model_are(
    run: Callable[[str], tuple[Job, Running]], place: str
) -> None:
    (shared, _), (job, running) = run("shared"), run(place)
    expected, found = shared.losses(), job.losses()
    assert list(found) == [1, 2, 3] and all(len(losses) == 6 for losses in found.values()), "the critic's are there"
    assert expected[3][2] > 0, "the divergence is measured"
    for step, losses in expected.items():
        assert found[step] == pytest.approx(losses, abs=FLOOR, rel=2e-4)
    assert rewards(job) == pytest.approx(rewards(shared), abs=FLOOR)
    assert running.outcome() == "succeeded"
    manifest = read_manifest(Path(running.progress().checkpoints[-1].path))
    assert manifest and manifest.roles.keys() == {"critic"}


@extra
def test_after_a_killed_rank_of_the_critic_all_is_bit_equal_and_the_driver_names_it(
    make: Make, run: Callable[[str], tuple[Job, Running]]
) -> None:
    whole, ran = run("TP1 next to TP2")
    job = make("TP1 next to TP2", everySteps=1)
    first = job.start(1)
    until_step(job, 2)
    os.kill(first.gangs["critic"][0], signal.SIGKILL)
    assert any(first.wait())
    assert "lost the role critic" in first.failures()["error-driver"].message
    second = job.start(2)
    assert not any(second.wait())
    assert second.progress().started_from in (1, 2)
    assert job.losses() == whole.losses()
    assert second.progress().digest == ran.progress().digest


@extra
@pytest.mark.parametrize(("before", "after"), [("DP2 next to DP1", "shared"), ("shared", "TP1 next to TP2")])
def test_a_critic_continues_on_other_ranks(
    make: Make, run: Callable[[str], tuple[Job, Running]], before: str, after: str
) -> None:
    shared, _ = run("shared")
    first = make(before, everySteps=1)
    running = first.start(1)
    until_step(first, 1)
    first.tell(1, "drain")
    assert not any(running.wait())
    step = running.progress().checkpoints[-1].step
    second = make(after, path=str(first.root), everySteps=1)
    second.root = first.root
    resumed = second.start(2)
    assert not any(resumed.wait())
    assert resumed.progress().started_from == step
    for number, losses in shared.losses().items():
        assert second.losses()[number] == pytest.approx(losses, abs=FLOOR, rel=2e-4)


def until_step(job: Job, step: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not any(m["step"] >= step and "train/loss" in m for m in job.metrics()):
        assert time.monotonic() < deadline, "the step never came"
        time.sleep(0.02)
