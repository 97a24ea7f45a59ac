"""Gradients do not depend on how a step is cut."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from extra import extra_but
from rljob_api.spec import RLJobSpec
from rljob_trainer.wire.batch import Batch
from trainer.megatron.gang import gradient, run_engines
from trainer.megatron.models import changed_samples, job, make_batch, train_step

pytestmark = pytest.mark.slow

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo, token mean, entropy, KL": {"kl": {"coefficient": 0.1}, "entropyCoefficient": 0.01},
    "rloo, gspo, sequence weights, rejection, overlong filter": {
        "advantage": "rloo",
        "loss": "gspo",
        "clip": {"low": 3e-4, "high": 4e-4},
        "aggregation": "sequenceMeanTokenMean",
        "rolloutCorrection": {
            "importanceSampling": "sequence",
            "reject": {"level": "sequence", "low": 0.998, "high": 1.002},
        },
        "overlong": {"filter": True},
    },
    "reinforce++, cispo, sum norm, KL in the reward": {
        "advantage": "reinforce++",
        "loss": "cispo",
        "aggregation": "sequenceMeanTokenSumNorm",
        "kl": {"coefficient": 0.1, "estimator": "k1", "where": "reward"},
    },
    "grpo, sums, bounds, difficulty": {
        "aggregation": "sequenceMeanTokenSum",
        "rewardClip": 0.9,
        "advantageClip": 1.0,
        "difficulty": {"low": 0.3, "high": 0.9},
        "overlong": {"filter": True},
    },
}
CUTS: dict[str, dict[str, Any]] = {
    "DP4": {},
    "DP4, small micro-batches": {"tokens": 24},
    "TP2 DP2": {"tensor": 2},
    "PP2 DP2": {"pipeline": 2},
    "CP2 DP2": {"context": 2},
    "TP2 PP2, small micro-batches": {"tensor": 2, "pipeline": 2, "tokens": 24},
}


@pytest.fixture(scope="module")
def batch(model: Path) -> Batch:
    """With rollouts that are a little off, and a few responses that were cut off."""
    made = make_batch(model, temperature=1.05)
    return changed_samples(made, lambda s: replace(s, finish_reason="length" if s.sample == 1 else "stop"))


def spec(model: Path, algorithm: str, world: int, tokens: int = 4096, **sizes: int) -> RLJobSpec:
    train = {"optimizer": {"learningRate": 1e-30, "clipGrad": 0}, "batches": {"replay": "/r"}}
    trainer = {"nodes": world, "parallelism": sizes}
    return job(model, trainer=trainer, algorithm=ALGORITHMS[algorithm], tokensPerMicroBatch=tokens, **train)


Stepped = tuple[dict[str, float], dict[str, torch.Tensor]]
"""Metrics and gradient of a step."""


@pytest.fixture(scope="module")
def whole(model: Path, batch: Batch) -> dict[str, Stepped]:
    """By algorithm, what one rank computes in one micro-batch."""
    step = partial(stepped, batch)
    return run_engines(1, {algorithm: (spec(model, algorithm, 1), step) for algorithm in ALGORITHMS})


def stepped(batch: Batch, engine: Any) -> Stepped:
    return train_step(engine, batch), gradient(engine)


@pytest.mark.parametrize(
    "cut", extra_but(("DP4, small micro-batches", "CP2 DP2", "TP2 PP2, small micro-batches"), CUTS)
)
def test_gradients_are_equal_over_any_cut_into_ranks_stages_and_micro_batches(
    model: Path, batch: Batch, whole: dict[str, Stepped], cut: str
) -> None:
    step = partial(stepped, batch)
    found_of = run_engines(4, {a: (spec(model, a, 4, **CUTS[cut]), step) for a in ALGORITHMS})
    for algorithm, (metrics, found) in found_of.items():
        expected_metrics, expected = whole[algorithm]
        assert max(g.abs().max() for g in expected.values()) > 0.005
        assert expected.keys() == found.keys()
        assert max(float((found[k] - g).abs().max()) for k, g in expected.items()) < 1e-6, algorithm
        assert metrics == pytest.approx(expected_metrics, rel=1e-4, abs=2e-6), algorithm


def test_filters_leave_something_to_compare(whole: dict[str, Stepped]) -> None:
    filtered = whole["rloo, gspo, sequence weights, rejection, overlong filter"][0]
    assert 0 < filtered["train/rejected"] < 1
    fitting = whole["grpo, sums, bounds, difficulty"][0]
    assert 0 < fitting["train/too_hard"] + fitting["train/too_easy"] < 1
