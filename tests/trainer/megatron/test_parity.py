"""The same numbers in every layout and every cut."""

from pathlib import Path

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.batch import StepBatch
from trainer.megatron.models import job, make_batch, make_model, ranks_of
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

LAYOUTS = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1)]


def train(spec: RLJobSpec, batches: list[StepBatch]) -> list[list[dict[str, float]]]:
    """The metrics of every step on every rank."""

    def on_a_rank() -> list[dict[str, float]]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        return [engine.train_step(b) for b in batches]

    return run_ranks(ranks_of(spec), on_a_rank)


@pytest.fixture(scope="module")
def batches(model: Path) -> list[StepBatch]:
    return [make_batch(model, step) for step in (1, 2, 3)]


def off_policy(spec: RLJobSpec) -> RLJobSpec:
    """Batches that the starting model drew do not fit the policy of later steps; replaying them is meant."""
    changed = {
        "train": spec.train.model_copy(
            update={"batches": spec.train.batches.model_copy(update={"replay": "/replayed"})}
        )
    }
    return spec.model_copy(update=changed)


@pytest.fixture(scope="module")
def one_rank(model: Path, batches: list[StepBatch]) -> list[dict[str, float]]:
    return train(off_policy(job(model, miniBatches=2)), batches)[0]


@pytest.mark.parametrize(("tensor", "pipeline", "data"), LAYOUTS)
def test_every_layout_trains_like_one_rank(
    model: Path, batches: list[StepBatch], one_rank: list[dict[str, float]], tensor: int, pipeline: int, data: int
) -> None:
    ranks = train(off_policy(job(model, tensor, pipeline, data, miniBatches=2)), batches)
    assert all(rank == ranks[0] for rank in ranks)
    for step, expected in zip(ranks[0], one_rank, strict=True):
        assert step == pytest.approx(expected, rel=1e-4, abs=2e-6)


def test_the_terms_of_the_loss_take_part(one_rank: list[dict[str, float]]) -> None:
    assert one_rank[0]["train/kl"] > 0
    assert one_rank[0]["train/ratio_mean"] != 1.0
    assert one_rank[0]["train/learning_rate"] == 1e-3
    assert one_rank[2]["train/kl"] > one_rank[0]["train/kl"]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 2)])
def test_log_probs_of_packed_samples_are_those_of_the_hugging_face_model(
    megatron: None, tmp_path: Path, kind: str, tensor: int, pipeline: int
) -> None:
    """One pack of all samples against each sample alone: nothing is seen across sequences, and temperature and padding are right."""
    model = make_model(tmp_path / "model", kind, tied=False, vocabulary=161)
    batch = make_batch(model, temperature=0.7)
    metrics = train(job(model, tensor, pipeline, tokensPerMicroBatch=4096, temperature=0.7), [batch])[0][0]
    assert metrics["train_rollout/log_prob_diff_max"] < 1e-4
    assert metrics["train/tokens"] == sum(len(s.prompt_tokens) + len(s.response_tokens) for s in batch.samples)


def test_bfloat16_trains_close_to_float32(
    model: Path, batches: list[StepBatch], one_rank: list[dict[str, float]]
) -> None:
    metrics = train(off_policy(job(model, 2, 1, 1, dtype="bfloat16", miniBatches=2)), batches)[0]
    for step, expected in zip(metrics, one_rank, strict=True):
        assert step["train/loss"] == pytest.approx(expected["train/loss"], abs=0.02)
        assert step["train_rollout/log_prob_diff_mean"] == pytest.approx(
            expected["train_rollout/log_prob_diff_mean"], abs=0.02
        )


def test_a_rank_without_samples_takes_part_with_filling(model: Path) -> None:
    batch = make_batch(model, groups=1, samples=2)
    alone = train(job(model), [batch])[0][0]
    assert train(job(model, data=4), [batch])[0][0] == pytest.approx(alone, rel=1e-4, abs=2e-6)
