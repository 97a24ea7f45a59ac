"""The same numbers in every cut into micro-batches and data-parallel ranks, and in half the bits. Layouts: test_parallelism."""

from pathlib import Path

import pytest

from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.models import job, make_batch, ranks_of, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


def train(spec: RLJobSpec, batches: list[Batch]) -> list[list[dict[str, float]]]:
    """The metrics of every step on every rank."""

    def on_a_rank() -> list[dict[str, float]]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        return [train_step(engine, b) for b in batches]

    return run_ranks(ranks_of(spec), on_a_rank)


@pytest.fixture(scope="module")
def batches(model: Path) -> list[Batch]:
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
def one_rank(model: Path, batches: list[Batch]) -> list[dict[str, float]]:
    return train(off_policy(job(model, miniBatches=2)), batches)[0]


def test_the_terms_of_the_loss_take_part(one_rank: list[dict[str, float]]) -> None:
    assert one_rank[0]["train/kl"] > 0
    assert one_rank[0]["train/ratio_mean"] != 1.0
    assert one_rank[0]["train/learning_rate"] == 1e-3
    assert one_rank[2]["train/kl"] > one_rank[0]["train/kl"]


def test_bfloat16_trains_close_to_float32(model: Path, batches: list[Batch], one_rank: list[dict[str, float]]) -> None:
    metrics = train(off_policy(job(model, 2, 1, 1, dtype="bfloat16", miniBatches=2)), batches)[0]
    for step, expected in zip(metrics, one_rank, strict=True):
        assert step["train/loss"] == pytest.approx(expected["train/loss"], abs=0.02)
        assert step["train_rollout/log_prob_diff_mean"] == pytest.approx(
            expected["train_rollout/log_prob_diff_mean"], abs=0.02
        )


def test_a_rank_without_samples_takes_part_with_padding(model: Path) -> None:
    batch = make_batch(model, groups=1, samples=2)
    alone = train(job(model), [batch])[0][0]
    assert train(job(model, data=4), [batch])[0][0] == pytest.approx(alone, rel=1e-4, abs=2e-6)
