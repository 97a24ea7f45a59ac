"""Whole jobs that learn from a teacher and from nothing else: the reference on ranks of its own, and the likeliest tokens of a pool's real server."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rljob_trainer.algorithm.terms import top_k_kl
from rljob_trainer.driver.buffer.assembly import batch_metrics
from rljob_trainer.driver.buffer.batch_files import record
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.megatron.models import make_batch, make_model, written_by
from trainer.rank.job import STEPS, Job
from trainer.server.models import distributions
from trainer.server.servers import pool_server

pytestmark = pytest.mark.slow

VLLM_ARGS = {"dtype": "float32", "max-model-len": 64, "kv-cache-memory-bytes": 67108864}
TOP_K = 3


@dataclass
class Lesson:
    """The same unrewarded responses in every step, and a teacher of another family with the policy's vocabulary."""

    material: Path
    batches: Path
    teacher: Path
    samples: list[Trajectory]

    def job(self, directory: Path, **changes: Any) -> Job:
        train = {
            "steps": STEPS,
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "tokensPerMicroBatch": 64,
            "optimizer": {"learningRate": 1e-3},
            "batches": {"replay": str(self.batches)},
        }
        trainer = {"device": "cpu", "processesPerNode": 2, "parallelism": {"tensor": 2}}
        return Job(self.material, directory, rewards=[], train=train, trainer=trainer, **changes)

    @property
    def models(self) -> tuple[Path, Path]:
        """The policy before its first step, and its teacher."""
        return self.material / "model", self.teacher

    def said(self, model: Path) -> torch.Tensor:
        """[response tokens, vocabulary]: log-probabilities by Hugging Face's implementation."""
        texts = ((s.prompt_tokens.tolist(), s.response_tokens.tolist()) for s in self.samples)
        return torch.cat([distributions(model, *text) for text in texts])


@pytest.fixture(scope="module")
def lesson(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    root, model = tmp_path_factory.mktemp("lesson"), material / "model"
    teacher = make_model(root / "teacher", "qwen3", seed=7)
    AutoTokenizer.from_pretrained(model).save_pretrained(teacher)
    batch = make_batch(model)
    for step in range(1, STEPS + 1):
        samples = [replace(written_by(s, step - 1), reward=0.0) for s in batch.samples]
        record(root, Batch.of(step, samples, batch_metrics(samples, samples)), 1.0)
    return Lesson(material, root / "batches", teacher, list(batch.samples))


def test_a_reference_of_another_family_on_ranks_of_its_own_teaches(lesson: Lesson, tmp_path: Path) -> None:
    job = lesson.job(
        tmp_path,
        algorithm={"distillation": {"reference": True, "where": "loss"}},
        reference={"path": str(lesson.teacher), "processesPerNode": 1},
    )
    assert not any(job.start(1).wait())
    tokens = torch.cat([torch.tensor(s.response_tokens) for s in lesson.samples]).long()
    ours, theirs = (lesson.said(model).gather(1, tokens[:, None]) for model in lesson.models)
    assert falling(job, "train/loss")[0] == pytest.approx(((ours - theirs) ** 2 / 2).mean().item(), rel=1e-3)


@pytest.mark.extra
def test_the_likeliest_tokens_of_a_teacher_in_a_pool_teach(lesson: Lesson, tmp_path: Path) -> None:
    pool = {"name": "teacher", "model": str(lesson.teacher), "vllmArgs": VLLM_ARGS}
    job = lesson.job(
        tmp_path, algorithm={"distillation": {"pool": "teacher", "where": "loss", "topK": TOP_K}}, pools=[pool]
    )
    with pool_server(pool, tmp_path / "log") as server:
        job.pools = {"teacher": [server.endpoint]}
        assert not any(job.start(1).wait())
    ours, theirs = (lesson.said(model) for model in lesson.models)
    theirs, best = theirs.topk(TOP_K)
    expected = top_k_kl(ours.gather(1, best), theirs).mean().item()
    assert falling(job, "train/loss")[0] == pytest.approx(expected, rel=1e-3)
    assert falling(job, "train/teacher_kl")[0] == pytest.approx(expected, rel=1e-3)


def falling(job: Job, metric: str) -> list[float]:
    """The metric of every step, which fell in each."""
    found = [m[metric] for m in job.metrics() if metric in m]
    assert len(found) == STEPS and all(after < before for before, after in pairwise(found)), found
    return found
