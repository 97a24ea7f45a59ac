"""What a step does, over the whole of spec.algorithm and spec.train."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.algorithm.advantages import ADVANTAGES
from rljob_trainer.algorithm.losses import LOSSES
from rljob_trainer.failure import ConfigurationError
from trainer.algorithm.test_functions import EXAMPLE
from trainer.megatron.gang import changed, equal, moments, run_engines, weights
from trainer.megatron.models import changed_samples, job, make_batch, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

REPLAY = {"batches": {"replay": "/r"}}
STILL = {"optimizer": {"learningRate": 1e-30}}


def test_a_step_runs_with_every_advantage_and_every_loss(model: Path) -> None:
    batch = changed_samples(make_batch(model), lambda s: replace(s, baseline_reward=0.5))

    def step(engine: Any) -> dict[str, float]:
        return train_step(engine, batch)

    specs = {
        (advantage, loss): changed(
            job(model, data=2, algorithm={"advantage": advantage, "loss": loss}, miniBatches=2, epochsPerStep=2),
            critic={} if advantage == "gae" else None,
        )
        for advantage in ADVANTAGES
        for loss in LOSSES
    }
    found = run_engines(2, {f"{a}, {b}": (spec, step) for (a, b), spec in specs.items()})
    for (advantage, loss), spec in specs.items():
        metrics = found[f"{advantage}, {loss}"]
        assert all(math.isfinite(x) for x in metrics.values())
        assert metrics["train/grad_norm"] > 0
        assert metrics["train/approx_kl"] > 0, "later updates see a policy that has moved"
        assert ("critic/loss" in metrics) == (spec.critic is not None)


def test_functions_of_a_file_train_as_the_formulas_that_they_repeat(model: Path, tmp_path: Path) -> None:
    """The worked example of docs/algorithms.md, over two ranks and four updates, bit by bit."""
    file = tmp_path / "algorithm.py"
    file.write_text(EXAMPLE)
    own = {name: {"path": str(file), "function": name} for name in ("advantage", "loss")}
    python = {
        "advantage": "python",
        "advantageFunction": own["advantage"],
        "loss": "python",
        "lossFunction": own["loss"],
    }

    def step(engine: Any) -> Any:
        return train_step(engine, make_batch(model)), weights(engine)

    shape: dict[str, Any] = {"data": 2, "miniBatches": 2, "epochsPerStep": 2}
    specs = {"file": job(model, algorithm=python, **shape), "formulas": job(model, algorithm={}, **shape)}
    found = run_engines(2, {name: (spec, step) for name, spec in specs.items()})
    assert found["file"][0]["train/approx_kl"] > 0
    assert equal(found["file"], found["formulas"])


def test_ranks_that_find_different_files_say_so(tmp_path: Path) -> None:
    """As after a change of a ConfigMap that has not reached every node."""
    field = "spec.algorithm.advantageFunction.path"

    def on_a_rank() -> str:
        from rljob_trainer.algorithm.objective import Objective, UserFile
        from rljob_trainer.rank.tasks import require_same_files
        from rljob_trainer.wire.collective import Ranks

        ranks, objective = Ranks(60), Objective()
        objective.files = (UserFile(field, "/data/algorithm.py", "1" * 64),)
        require_same_files(objective, ranks)
        objective.files = (UserFile(field, "/data/algorithm.py", str(ranks.rank) * 64),)
        with pytest.raises(ConfigurationError) as caught:
            require_same_files(objective, ranks)
        return str(caught.value)

    rule = "ranks 1 found another file there, sha256 111111111111, than rank 0, 000000000000"
    for message in run_ranks(2, on_a_rank):
        assert message.startswith(f"{field} = /data/algorithm.py: {rule}; mount one volume")


def test_a_policy_that_does_not_learn_measures_the_same_again(model: Path) -> None:
    """The cheapest end-to-end gate there is (rl.md, pitfall 25), with every log-probability that is measured in a pass of its own."""
    batches = [make_batch(model), replace(make_batch(model), step=2)]
    fixed = {"kl": {"coefficient": 0.1, "estimator": "k1", "where": "reward"}, "advantage": "gae"}

    def steps(engine: Any) -> Any:
        before = weights(engine)
        metrics = [train_step(engine, b) for b in batches]
        return metrics, equal(before, weights(engine))

    specs = {
        "one update": job(model, data=2, **STILL, **REPLAY),
        "several": job(model, data=2, miniBatches=2, epochsPerStep=2, **STILL, **REPLAY),
        "KL in the reward": changed(job(model, 2, algorithm=fixed, **STILL, **REPLAY), critic=STILL),
    }
    for metrics, unchanged in run_engines(2, {name: (spec, steps) for name, spec in specs.items()}).values():
        assert unchanged
        for step in metrics:
            assert step["train/ratio_mean"] == 1.0
            assert step["train/clip_fraction"] == step["train/approx_kl"] == 0.0
            assert step["train/kl"] == 0.0, "the recomputed log-probabilities are the reference's, bit for bit"
            assert step["train_rollout/log_prob_diff_max"] < 1e-5
            assert step["train_rollout/effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
        first, second = ({n: x for n, x in step.items() if n.startswith("train_rollout/")} for step in metrics)
        assert first == second | {"train_rollout/policy_age": 0.0, "train_rollout/policy_age_max": 0.0}, (
            "the same samples are only one step older"
        )


def test_the_coefficient_of_the_divergence_follows_its_target(model: Path) -> None:
    adaptive = {"coefficient": 0.1, "adaptive": {"target": 1e-4, "horizon": 16}}

    def steps(engine: Any) -> list[dict[str, float]]:
        return [train_step(engine, make_batch(model, step)) for step in (1, 2, 3)]

    spec = job(model, algorithm={"kl": adaptive}, **REPLAY)
    first, second, third = run_engines(1, {"": (spec, steps)})[""]
    assert first["train/kl"] == 0.0
    assert first["train/kl_coefficient"] == 0.1
    assert second["train/kl_coefficient"] == pytest.approx(0.08), "the divergence was below the target"
    assert second["train/kl"] > 2e-4
    assert third["train/kl_coefficient"] == pytest.approx(0.08 * 1.2)


def test_a_step_that_leaves_nothing_to_learn_from_measures_nothing(model: Path) -> None:
    """All responses are cut off and filtered: a divergence of 0 would be a lie, and lower the coefficient."""
    cut = changed_samples(make_batch(model), lambda s: replace(s, finish_reason="length"))
    adaptive = {"coefficient": 0.1, "adaptive": {"target": 1e-4, "horizon": 16}}
    spec = job(model, algorithm={"kl": adaptive, "overlong": {"filter": True}}, **REPLAY)

    def steps(engine: Any) -> list[dict[str, float]]:
        return [train_step(engine, batch) for batch in (cut, replace(cut, step=2))]

    first, second = run_engines(1, {"": (spec, steps)})[""]
    assert (first["train/loss"], first["train/grad_norm"], first["train/skipped"]) == (0.0, 0.0, 0.0)
    assert not {"train/kl", "train/entropy", "train/ratio_mean", "train_rollout/effective_sample_size"} & first.keys()
    assert second["train/kl_coefficient"] == 0.1


def test_bypass_takes_the_rollouts_log_probabilities_for_the_old_ones(model: Path) -> None:
    batch = make_batch(model, temperature=1.3)

    def step(engine: Any) -> dict[str, float]:
        return train_step(engine, batch)

    cases = {
        bypass: job(model, algorithm={"rolloutCorrection": {"bypass": bypass}}, **REPLAY) for bypass in (True, False)
    }
    found = run_engines(1, {str(bypass): (spec, step) for bypass, spec in cases.items()})
    assert found["False"]["train/ratio_mean"] == 1.0
    assert found["True"]["train/ratio_mean"] == pytest.approx(found["True"]["train_rollout/ratio_mean"]) != 1.0


def test_what_is_not_finite_is_skipped_on_all_ranks_and_counted(model: Path) -> None:
    """Group 0 is in the first of two mini-batches; the second mini-batch is learnt from."""
    good = make_batch(model)
    half = changed_samples(good, lambda s: replace(s, reward=math.inf if s.group == 0 and s.sample == 0 else s.reward))
    bad = changed_samples(good, lambda s: replace(s, reward=math.nan))

    def steps(engine: Any) -> Any:
        first = train_step(engine, half)
        before = weights(engine), moments(engine)
        second = train_step(engine, replace(bad, step=2))
        return first, second, [equal(before[0], weights(engine)), equal(before[1], moments(engine))]

    spec = job(model, tensor=2, miniBatches=2, onNonFinite="skip", **REPLAY)
    first, second, unchanged = run_engines(2, {"": (spec, steps)})[""]
    assert (first["train/skipped"], second["train/skipped"]) == (1.0, 2.0)
    assert "train/loss" in first
    assert "train/loss" not in second
    assert unchanged == [True, True]


def test_ten_skipped_steps_in_a_row_end_the_job_and_one_good_one_between_them_does_not(model: Path) -> None:
    from rljob_trainer.failure import ConfigurationError

    def steps(engine: Any) -> list[float]:
        good = make_batch(model)
        bad = changed_samples(good, lambda s: replace(s, reward=math.nan))
        for batch in [*[bad] * 9, good, *[bad] * 9]:
            train_step(engine, batch)
        with pytest.raises(ConfigurationError, match="spec.train.onNonFinite = skip: 10 optimizer steps in a row"):
            train_step(engine, bad)
        return weights(engine)

    run_engines(1, {"": (job(model, onNonFinite="skip", **REPLAY), steps)})


def test_a_gradient_that_is_not_finite_leaves_the_weights_as_they_were(model: Path) -> None:
    from rljob_trainer.megatron.optimizer import NonFiniteError

    def step(engine: Any) -> tuple[str, bool]:
        before = weights(engine)
        engine._policy.modules[0].decoder.final_layernorm.weight.register_hook(lambda g: g * math.inf)
        with pytest.raises(NonFiniteError) as caught:
            train_step(engine, make_batch(model))
        return str(caught.value), equal(before, weights(engine))

    message, unchanged = run_engines(1, {"": (job(model), step)})[""]
    assert unchanged
    assert message.startswith("the norm of the gradient is ")


def test_a_step_clips_as_megatron_does_and_measures_the_norm_once(model: Path) -> None:
    """The same batch by our step and by ChainedOptimizer.step: the norm before clipping, and all weights and moments after it."""
    spec = job(model, optimizer={"learningRate": 1e-2, "clipGrad": 0.01})

    def step(engine: Any) -> Any:
        from megatron.core.optimizer import optimizer

        calls: list[None] = []
        measure = optimizer.get_grad_norm_fp32

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(None)
            return measure(*args, **kwargs)

        optimizer.get_grad_norm_fp32 = counted
        try:
            norm = train_step(engine, make_batch(model))["train/grad_norm"]
        finally:
            optimizer.get_grad_norm_fp32 = measure
        return norm, len(calls), weights(engine), moments(engine)

    def step_of_megatron(engine: Any) -> Any:
        policy = engine._policy
        policy._learner = replace(policy._learner, optimizer=Whole(policy.optimizer))
        train_step(engine, make_batch(model))
        return policy._learner.optimizer.norm, weights(engine), moments(engine)

    ours = run_engines(1, {"": (spec, step)})[""]
    theirs = run_engines(1, {"": (spec, step_of_megatron)})[""]
    assert (ours[0], ours[1]) == (theirs[0], 1) and ours[0] > 0.01
    assert equal(ours[2:], theirs[1:])


class Whole:
    """An optimizer of megatron that does all of its own step where ours asks for the second half."""

    chained_optimizers = ()

    def __init__(self, optimizer: Any) -> None:
        self.zero_grad, self.param_groups, self._step = optimizer.zero_grad, optimizer.param_groups, optimizer.step

    def prepare_grads(self) -> None:
        """Part of the step."""

    def get_grad_norm(self) -> float:
        return 1.0

    def step_with_ready_grads(self) -> None:
        _, self.norm, _ = self._step()


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_learning_rate_falls_over_the_optimizer_steps_of_the_job(model: Path, decay: str) -> None:
    """Two steps of two mini-batches: the rates of the optimizer steps 0 to 3 of 4, from 1e-3 to 1e-4."""
    optimizer = {"learningRate": 1e-3, "decay": decay, "minLearningRate": 1e-4}

    def steps(engine: Any) -> list[float]:
        return [train_step(engine, make_batch(model, s))["train/learning_rate"] for s in (1, 2)]

    spec = job(model, steps=2, miniBatches=2, optimizer=optimizer, **REPLAY)
    first, second = run_engines(1, {"": (spec, steps)})[""]
    share = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2}[decay]
    rates = [1e-4 + 9e-4 * share(i / 4) for i in range(4)]
    assert (first, second) == pytest.approx((rates[1], rates[3])), "of the last optimizer step"


@pytest.mark.parametrize("steps", [0, 1])
def test_no_step_of_the_warm_up_is_without_effect(model: Path, steps: int) -> None:
    def step(engine: Any) -> tuple[float, bool]:
        before = weights(engine)
        rate = train_step(engine, make_batch(model))["train/learning_rate"]
        return rate, equal(before, weights(engine))

    spec = job(model, optimizer={"learningRate": 1e-3, "warmupSteps": steps})
    assert run_engines(1, {"": (spec, step)})[""] == (1e-3, False)


def test_advantages_need_no_pass_and_no_exchange_where_rewards_are_enough(model: Path) -> None:
    """One forward and backward pass per micro-batch, and one sum over the ranks per optimizer step, are all that a plain step costs."""

    def step(engine: Any) -> dict[str, int]:
        from rljob_trainer.megatron import network, step

        counts = {"passes": 0, "gathered": 0}
        run, gather = network.Passes._run, step.gather

        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                counts[name] += 1
                return function(*args, **kwargs)

            return call

        network.Passes._run, step.gather = counted("passes", run), counted("gathered", gather)
        try:
            train_step(engine, make_batch(model))
        finally:
            network.Passes._run, step.gather = run, gather
        return counts

    assert run_engines(2, {"": (job(model, data=2, algorithm={}), step)})[""] == {"passes": 1, "gathered": 0}
