"""The critic, and what it shares with reward models on the ranks: a backbone with a value head."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from extra import extra_but
from rljob_api.spec import RLJobSpec
from trainer.megatron.classifiers import make_classifier, scores_of_prefixes
from trainer.megatron.gang import changed, column, equal, run_engines, weights
from trainer.megatron.models import changed_samples, job, make_batch, make_model, train_step

pytestmark = pytest.mark.slow

PPO: dict[str, Any] = {"advantage": "gae", "gaeLambda": 0.95, "kl": {"coefficient": 0.02, "where": "reward"}}
REPLAY = {"batches": {"replay": "/r"}}
OVERLAP = {"overlap": {"gradReduce": True, "paramGather": True}}
LAYOUTS: dict[str, dict[str, int]] = {
    "DP4": {},
    "TP2 DP2": {"tensor": 2},
    "PP2 DP2": {"pipeline": 2},
    "CP2 DP2": {"context": 2},
    "TP2 PP2": {"tensor": 2, "pipeline": 2},
    "PP2 VPP2 DP2, overlap": {"pipeline": 2, "virtualPipeline": 2},
}


def ppo(model: Path, world: int = 1, sizes: dict[str, int] | None = None, **critic: Any) -> RLJobSpec:
    trainer = {"nodes": world, "parallelism": sizes or {}} | (OVERLAP if sizes and "virtualPipeline" in sizes else {})
    spec = job(model, trainer=trainer, algorithm=PPO, miniBatches=2, epochsPerStep=2, **REPLAY)
    return changed(spec, critic={"optimizer": {"learningRate": 1e-3}} | critic)


@pytest.fixture(scope="module")
def classifier(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.mark.parametrize("kind", extra_but(("a classifier",), ("the policy's directory, tied", "a classifier")))
def test_policy_and_critic_learn_alike_in_every_layout(model: Path, classifier: Path, kind: str) -> None:
    batches = [make_batch(model, step) for step in (1, 2)]
    critic = {"clip": 0.02} | ({"path": str(classifier)} if kind == "a classifier" else {})

    def steps(engine: Any) -> list[dict[str, float]]:
        return [train_step(engine, b) for b in batches]

    expected = run_engines(1, {"": (ppo(model, **critic), steps)})[""]
    assert 0 < expected[1]["critic/clip_fraction"] < 1
    cut = run_engines(4, {name: (ppo(model, 4, sizes, **critic), steps) for name, sizes in LAYOUTS.items()})
    for name, found in cut.items():
        for step, wanted in zip(found, expected, strict=True):
            assert step == pytest.approx(wanted, rel=2e-4, abs=5e-6), name


def test_a_critic_of_experts_learns_alike_when_they_are_cut(megatron: None, tmp_path: Path) -> None:
    experts = make_model(tmp_path / "model", "qwen3_moe", tied=False)
    batches = [make_batch(experts, step) for step in (1, 2)]

    def steps(engine: Any) -> list[dict[str, float]]:
        return [train_step(engine, b) for b in batches]

    expected = run_engines(1, {"": (ppo(experts), steps)})[""]
    found = run_engines(2, {"": (ppo(experts, 2, {"expert": 2}), steps)})[""]
    for step, wanted in zip(found, expected, strict=True):
        assert step == pytest.approx(wanted, rel=2e-4, abs=5e-6)


def test_values_are_those_of_the_classifier_before_each_token(model: Path, classifier: Path) -> None:
    batch = make_batch(model)

    def values(engine: Any) -> list[torch.Tensor]:
        return column(engine.measure(batch), "values")

    specs = {name: ppo(model, 4, LAYOUTS[name], path=str(classifier)) for name in ("TP2 PP2", "CP2 DP2")}
    for found in run_engines(4, {name: (spec, values) for name, spec in specs.items()}).values():
        for sample, ours in zip(batch.samples, found, strict=True):
            theirs = scores_of_prefixes(classifier, tuple(sample.tokens.tolist()))
            before = theirs[sample.prompt_length - 1 : -1]
            assert float((ours - before).abs().max()) < 1e-5


def test_the_critic_learns_what_prompts_are_worth(model: Path) -> None:
    made = make_batch(model)
    batch = changed_samples(made, lambda s: replace(s, reward=float(s.group % 2)))

    def steps(engine: Any) -> list[float]:
        return [train_step(engine, batch)["critic/explained_variance"] for _ in range(25)]

    spec = changed(ppo(model, clip=0, warmupSteps=100), algorithm={"gaeLambda": 1.0, "kl": {"coefficient": 0}})
    explained = run_engines(1, {"": (spec, steps)})[""]
    assert explained[0] == 0.0, "the new head says 0 of everything"
    assert explained[-1] > 0.9


def test_while_the_critic_warms_up_the_policy_is_measured_but_does_not_learn(model: Path) -> None:
    def steps(engine: Any) -> Any:
        before = weights(engine)
        first = train_step(engine, make_batch(model, 1))
        same = equal(before, weights(engine))
        second = train_step(engine, make_batch(model, 2))
        return first, same, second, equal(before, weights(engine)), engine.objective.kl_coefficient

    adaptive = {"kl": PPO["kl"] | {"adaptive": {"target": 1e-6, "horizon": 16}}}
    spec = changed(ppo(model, warmupSteps=1), algorithm=adaptive)
    first, same, second, still, coefficient = run_engines(1, {"": (spec, steps)})[""]
    assert first["train/kl_coefficient"] == second["train/kl_coefficient"] == 0.02 != coefficient
    assert (same, still) == (True, False)
    assert (first["train/learning_rate"], second["train/learning_rate"]) == (0.0, 1e-3)
    assert first["train_rollout/log_prob_diff_max"] < 1e-5
    assert first["critic/learning_rate"] == 1e-3


def refused(spec: RLJobSpec) -> str:
    """The message."""
    with pytest.raises(AssertionError) as caught:
        run_engines(1, {"": (spec, lambda engine: None)})
    line = next(x for x in str(caught.value).splitlines() if "ConfigurationError: " in x)
    return line.partition("ConfigurationError: ")[2]


def test_a_directory_that_cannot_be_a_critic_is_refused_by_field(model: Path, tmp_path: Path) -> None:
    two, other = make_classifier(tmp_path / "two", labels=2), make_model(tmp_path / "other", vocabulary=100)
    biased = make_classifier(tmp_path / "biased")
    file = biased / "model.safetensors"
    save_file(load_file(file) | {"score.bias": torch.ones(1)}, file, metadata={"format": "pt"})
    for path, words in (
        (tmp_path, "holds no config.json"),
        (two, "its classifier has 2 labels"),
        (biased, "its classifier adds score.bias"),
        (other, "has a vocabulary of 100 tokens, the policy one of 160"),
    ):
        message = refused(ppo(model, path=str(path)))
        assert message.startswith(f"spec.critic.path = {path}: {words}")
