"""What a step refuses, and what leaves the policy as it is."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.megatron.models import (
    changed_samples,
    job,
    make_batch,
    make_model,
    ranks_of,
    shifted,
    train_step,
    written_by,
)
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow


def weights(engine: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.export()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def attempt(model: Path, batch: Batch, error: str, **train: Any) -> tuple[str, bool]:
    """The message of the error that a step raised, and whether the weights are as before it."""

    def on_a_rank() -> tuple[str, bool]:
        from rljob_trainer.megatron import engine as module

        engine = module.Engine(job(model, data=2, **train), lambda: None)
        before = weights(engine)
        with pytest.raises(getattr(module, error)) as caught:
            train_step(engine, batch)
        return str(caught.value), same(before, weights(engine))

    first, second = run_ranks(2, on_a_rank)
    assert first == second
    return first


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_rollouts_with_other_weights_stop_the_step_before_the_optimizer(model: Path, mini_batches: int) -> None:
    batch = changed_samples(make_batch(model), lambda s: shifted(s, -0.5))
    message, unchanged = attempt(model, batch, "MismatchError", miniBatches=mini_batches)
    assert unchanged
    assert "differ by 0.5 per token on average" in message


def test_rollouts_without_a_number_stop_the_step_and_are_named(model: Path) -> None:
    batch = changed_samples(make_batch(model), lambda s: shifted(s, math.nan) if s.sample == 0 else s)
    message, unchanged = attempt(model, batch, "MismatchError")
    assert unchanged
    assert "from the rollouts have a log-probability that is NaN" in message and "from the trainer" not in message


def test_samples_of_an_older_policy_may_differ_and_are_measured_with_their_age(model: Path) -> None:
    batch = changed_samples(make_batch(model, step=2), lambda s: written_by(shifted(s, -0.5), 0))

    def on_a_rank() -> dict[str, float]:
        from rljob_trainer.megatron.engine import Engine

        correction = {"rolloutCorrection": {"importanceSampling": "token"}}
        return train_step(Engine(job(model, algorithm=correction, staleness=1), lambda: None), batch)

    metrics = run_ranks(1, on_a_rank)[0]
    assert metrics["train_rollout/policy_age"] == 1
    assert metrics["train_rollout/log_prob_diff_mean"] == pytest.approx(0.5, abs=1e-3)
    assert metrics["train_rollout/weight_mean"] == pytest.approx(math.exp(0.5), rel=1e-3)


def half(own: int) -> Callable[[Trajectory], Trajectory]:
    """The first half of each response is of policy 0, the second of policy 1, and the log-probabilities of policy `own` are wrong."""

    return lambda s: shifted(written_by(s, 0, 1), -0.5, policy_step=own)


def test_of_a_continued_response_only_what_the_policy_drew_itself_has_to_match(model: Path) -> None:
    partial = {
        "overSampling": 2,
        "partialRollouts": {},
        "algorithm": {"rolloutCorrection": {"importanceSampling": "token"}},
    }

    def on_a_rank() -> dict[str, float]:
        from rljob_trainer.megatron.engine import Engine

        return train_step(
            Engine(job(model, **partial), lambda: None), changed_samples(make_batch(model, step=2), half(own=0))
        )

    metrics = run_ranks(1, on_a_rank)[0]
    assert 0 < metrics["train_rollout/policy_age"] < 1 == metrics["train_rollout/policy_age_max"]
    assert metrics["train_rollout/weight_mean"] > 1
    message, unchanged = attempt(
        model, changed_samples(make_batch(model, step=2), half(own=1)), "MismatchError", **partial
    )
    assert unchanged and "differ by 0.5 per token" in message


def test_a_reward_that_is_not_finite_stops_the_step_before_the_optimizer(model: Path) -> None:
    batch = changed_samples(make_batch(model), lambda s: replace(s, reward=math.inf if s.sample == 0 else 0.0))
    message, unchanged = attempt(model, batch, "NonFiniteError")
    assert unchanged
    assert message == "the loss is nan"


def test_step_i_of_the_warm_up_uses_its_share_of_the_learning_rate(model: Path) -> None:
    def on_a_rank() -> list[float]:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(job(model, steps=2, optimizer={"learningRate": 1e-6, "warmupSteps": 2}), lambda: None)
        return [train_step(engine, make_batch(model, step))["train/learning_rate"] for step in (1, 2, 3, 4)]

    assert run_ranks(1, on_a_rank)[0] == [5e-7, 1e-6, 1e-6, 1e-6]


def test_learning_makes_rewarded_responses_likelier(model: Path) -> None:
    batch = changed_samples(make_batch(model, step=2), lambda s: written_by(replace(s, reward=float(s.sample % 2)), 0))

    def on_a_rank() -> float:
        from rljob_trainer.megatron.engine import Engine
        from rljob_trainer.megatron.packing import micro_batch

        engine = Engine(job(model, algorithm={}), lambda: None)
        for _ in range(5):
            train_step(engine, batch)
        micro = micro_batch(batch.samples, range(len(batch.samples)), engine._parallel)
        after = micro.row.collect(engine._policy.log_probs([micro], 1.0)[0])
        return sum(
            (2 * s.reward - 1) * float((a - torch.tensor(s.response_log_probs)).sum())
            for s, a in zip(batch.samples, after, strict=True)
        )

    assert run_ranks(1, on_a_rank)[0] > 1.0


def refusal(spec: Any) -> ConfigurationError:
    def on_a_rank() -> tuple[str, str]:
        from rljob_trainer.megatron.engine import Engine

        with pytest.raises(ConfigurationError) as caught:
            Engine(spec, lambda: None)
        return caught.value.field, str(caught.value)

    return run_ranks(ranks_of(spec), on_a_rank)[0]


@pytest.mark.parametrize(
    ("layout", "change", "field", "words"),
    [
        ({"tensor": 3}, {}, "spec.trainer.parallelism.tensor", "num_attention_heads = 4"),
        ({"pipeline": 3}, {}, "spec.trainer.parallelism.pipeline", "num_hidden_layers = 4"),
        ({}, {"architectures": ["SomethingElseForCausalLM"]}, "spec.model.path", "SomethingElseForCausalLM"),
        ({}, None, "spec.model.path", "holds no config.json"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_by_field(
    megatron: None, tmp_path: Path, layout: dict[str, int], change: dict[str, Any] | None, field: str, words: str
) -> None:
    path = make_model(tmp_path / "model")
    config = path / "config.json"
    if change is None:
        config.unlink()
    else:
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
    found, message = refusal(job(path, **layout))
    assert found == field
    assert words in message


def test_collectives_of_every_group_end_with_the_stall_timeout(model: Path) -> None:
    """megatron's groups have half an hour of their own unless told."""
    spec = job(model, tensor=2)
    lifecycle = spec.lifecycle.model_copy(update={"stall_timeout_seconds": 77})

    def on_a_rank() -> set[float]:
        from megatron.core import parallel_state as mpu

        from rljob_trainer.megatron.engine import Engine

        Engine(spec.model_copy(update={"lifecycle": lifecycle}), lambda: None)
        groups = (
            mpu.get_tensor_model_parallel_group(),
            mpu.get_pipeline_model_parallel_group(),
            mpu.get_data_parallel_group(with_context_parallel=True),
            mpu.get_expert_model_parallel_group(),
        )
        return {g._get_backend(torch.device("cpu")).options._timeout.total_seconds() for g in groups}

    assert run_ranks(2, on_a_rank) == [{77.0}] * 2
