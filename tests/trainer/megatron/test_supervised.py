"""Objectives of supervised tasks: gradients are those of transformers' model on single sequences, however a step is cut."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import logsigmoid

from api.specs import make_spec
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.algorithm.objective import Objective
from rljob_trainer.algorithm.preference import PreferenceObjective, RewardModelObjective
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory, demonstration
from trainer.megatron.classifiers import make_classifier
from trainer.megatron.gang import changed, equal, gradient, run_engines, weights
from trainer.megatron.models import job, make_batch, make_model, train_step
from trainer.megatron.test_objective import with_tool_output

pytestmark = pytest.mark.slow

CUTS: dict[str, dict[str, Any]] = {
    "DP4, small micro-batches": {"tokens": 40},
    "TP2 DP2": {"tensor": 2},
    "CP2 PP2": {"context": 2, "pipeline": 2},
    "TP2 PP2, small micro-batches": {"tensor": 2, "pipeline": 2, "tokens": 40},
    "PP2 VPP2 DP2": {"pipeline": 2, "virtualPipeline": 2},
}
Said = list[torch.Tensor]
"""What a model says of each trajectory: [learnt tokens, 2], log-probabilities of the token and on average; of a classifier its score [1]."""


def sums(said: Said) -> torch.Tensor:
    """Log-probabilities of responses, [pairs, 2]."""
    return torch.stack([s[:, 0].sum() for s in said]).view(-1, 2)


def means(said: Said) -> torch.Tensor:
    return torch.stack([s[:, 0].mean() for s in said]).view(-1, 2)


def leading(x: torch.Tensor) -> torch.Tensor:
    return x[:, 0] - x[:, 1]


def dpo(policy: Said, reference: Said) -> torch.Tensor:
    d = 0.2 * leading(sums(policy) - sums(reference))
    return (-0.9 * logsigmoid(d) - 0.1 * logsigmoid(-d) - 0.5 * means(policy)[:, 0]).mean()


def orpo(policy: Said, _: Said) -> torch.Tensor:
    odds = means(policy) - (1 - means(policy).exp()).log()
    return (-means(policy)[:, 0] - 0.2 * logsigmoid(leading(odds))).mean()


class Case(NamedTuple):
    objective: Callable[[RLJobSpec], Objective]
    sections: dict[str, Any]
    loss: Callable[[Said, Said], torch.Tensor]
    """Of what the policy and the reference say."""


CASES = {
    "cross entropy": Case(
        lambda spec: CrossEntropyObjective(spec.sft),
        {"task": "sft", "sft": {"labelSmoothing": 0.2, "aggregation": "sequenceMean"}},
        lambda policy, _: torch.stack([-(s @ torch.tensor([0.8, 0.2])).mean() for s in policy]).mean(),
    ),
    "dpo": Case(
        lambda spec: PreferenceObjective(spec.dpo),
        {"task": "dpo", "dpo": {"beta": 0.2, "labelSmoothing": 0.1, "sftCoefficient": 0.5}},
        dpo,
    ),
    "orpo": Case(
        lambda spec: PreferenceObjective(spec.dpo), {"task": "dpo", "dpo": {"loss": "orpo", "beta": 0.2}}, orpo
    ),
    "reward model": Case(
        lambda spec: RewardModelObjective(),
        {"task": "rewardModel"},
        lambda scores, _: -logsigmoid(leading(torch.stack(scores).view(-1, 2))).mean(),
    ),
}


@pytest.fixture(scope="module")
def paths(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("paths")
    return {
        "policy": model,
        "reference": make_model(directory / "reference", seed=3),
        "reward model": make_classifier(directory / "classifier"),
    }


@pytest.fixture(scope="module")
def batch(model: Path) -> Batch:
    """Pairs, some with tokens that nobody learns from in the middle."""
    made = make_batch(model, groups=5, samples=2).samples
    return Batch.of(1, [given(with_tool_output(t) if i % 3 else t) for i, t in enumerate(made)], {})


def given(trajectory: Trajectory) -> Trajectory:
    """What the policy wrote as a demonstration."""
    segments = (demonstration(s.tokens) if s.source == "policy" else s for s in trajectory.segments)
    return replace(trajectory, segments=tuple(segments), reward=0.0)


def spec_of(paths: dict[str, Path], case: str, world: int, tokens: int = 4096, **sizes: int) -> RLJobSpec:
    path = paths["reward model" if case == "reward model" else "policy"]
    return make_spec(
        model={"path": str(path), "dtype": "float32"},
        train={"optimizer": {"learningRate": 1e-30, "clipGrad": 0}, "tokensPerMicroBatch": tokens},
        trainer={"device": "cpu", "nodes": world, "parallelism": sizes},
        reference={"path": str(paths["reference"])} if case == "dpo" else {},
        **CASES[case].sections,
    )


def say(network: Any, batch: Batch, scores: bool) -> Said:
    return [score(network, t) if scores else log_probs(network, t) for t in batch.samples]


def log_probs(network: Any, t: Trajectory) -> torch.Tensor:
    ids, mask = torch.from_numpy(t.tokens).long(), torch.from_numpy(t.loss_mask)[1:]
    log_p = network(ids[None]).logits[0, :-1].log_softmax(-1)
    return torch.stack((log_p.gather(1, ids[1:, None])[:, 0], log_p.mean(-1)), dim=1)[mask]


def score(network: Any, t: Trajectory) -> torch.Tensor:
    return network(torch.from_numpy(t.tokens).long()[None]).logits[0]


def oracle(paths: dict[str, Path], case: str, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of transformers' model, a sequence at a time."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    scores = case == "reward model"
    kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    policy = kind.from_pretrained(paths["reward model" if scores else "policy"], dtype=torch.float32)
    with torch.no_grad():
        frozen = AutoModelForCausalLM.from_pretrained(paths["reference"], dtype=torch.float32)
        reference = say(frozen, batch, scores=False)
    loss = CASES[case].loss(say(policy, batch, scores), reference)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in policy.named_parameters()}


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.extra] * (case == "orpo")) for case in CASES])
def test_gradients_are_those_of_single_sequences_in_any_cut(case: str, paths: dict[str, Path], batch: Batch) -> None:
    def step(engine: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        return train_step(engine, batch), gradient(engine)

    objective = CASES[case].objective
    loss, expected = oracle(paths, case, batch)
    whole, _ = run_engines(1, {"": (spec_of(paths, case, 1), step)}, objective)[""]
    cut = run_engines(4, {c: (spec_of(paths, case, 4, **CUTS[c]), step) for c in CUTS}, objective)
    assert whole["train/loss"] == pytest.approx(loss, rel=1e-5)
    assert max(g.abs().max() for g in expected.values()) > 0.02
    for name, (metrics, found) in cut.items():
        assert expected.keys() == found.keys()
        assert max(float((found[k] - g).abs().max()) for k, g in expected.items()) < 2e-6, name
        assert metrics == pytest.approx(whole, rel=1e-4, abs=2e-6), name


def test_experts_on_several_ranks_are_fine_tuned_with_the_gradients_of_the_whole_model(
    paths: dict[str, Path], batch: Batch, tmp_path: Path
) -> None:
    """Loss and norm of the gradient are those of transformers' model, whose experts have other names; each gradient is that of one rank."""

    def step(engine: Any) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
        return train_step(engine, batch), gradient(engine)

    case, found = "cross entropy", paths | {"policy": make_model(tmp_path / "experts", "qwen3_moe")}
    objective, cuts = CASES[case].objective, {"EP2": {}, "EP2, small micro-batches": {"tokens": 40}}
    loss, gradients = oracle(found, case, batch)
    whole, expected = run_engines(1, {"": (spec_of(found, case, 1), step)}, objective)[""]
    cut = run_engines(2, {c: (spec_of(found, case, 2, expert=2, **cuts[c]), step) for c in cuts}, objective)
    norm = torch.stack([g.norm() for g in gradients.values() if g is not None]).norm().item()
    assert (whole["train/loss"], whole["train/grad_norm"]) == pytest.approx((loss, norm), rel=1e-5)
    assert len({name for name in expected if ".experts." in name}) == 4 * 4 * 3
    for name, (metrics, here) in cut.items():
        assert expected.keys() == here.keys()
        assert max(float((here[k] - g).abs().max()) for k, g in expected.items()) < 2e-6, name
        assert metrics == pytest.approx(whole, rel=1e-4, abs=2e-6), name


def test_pairs_learn_to_be_told_apart(paths: dict[str, Path], batch: Batch) -> None:
    """By the reward model, and by the policy of DPO."""

    def steps(engine: Any) -> list[dict[str, float]]:
        return [train_step(engine, replace(batch, step=step)) for step in range(1, 16)]

    for case in ("dpo", "reward model"):
        spec = changed(spec_of(paths, case, 1), train={"optimizer": {"learningRate": 1e-3}}, reference={"path": None})
        metrics = run_engines(1, {"": (spec, steps)}, CASES[case].objective)[""]
        assert metrics[0]["train/margin"] < 0.5
        assert metrics[-1]["train/margin"] > metrics[0]["train/margin"] + 0.3
        assert metrics[-1]["train/accuracy"] == 1.0


@pytest.mark.parametrize("start", ["a language model, tied", "a classifier"])
def test_a_reward_model_is_exported_as_the_classifier_that_transformers_and_an_rl_job_read(
    start: str, paths: dict[str, Path], batch: Batch, tmp_path: Path
) -> None:
    """Its weights bit for bit; what an RL job's ranks read scores as the trained network did, and as transformers does."""
    case = "reward model"
    begun = paths["policy"] if start.startswith("a language model") else paths[case]
    more = {"model": {"path": str(begun)}, "train": {"optimizer": {"learningRate": 1e-3}}}
    spec = changed(spec_of(paths, case, 4, pipeline=2, tensor=2), **more)

    def train(engine: Any) -> tuple[dict[str, torch.Tensor], list[float]]:
        for step in (1, 2):
            train_step(engine, replace(batch, step=step))
        write_hugging_face(engine, begun, tmp_path / "exported")
        return weights(engine), scores(engine)

    def scores(engine: Any) -> list[float]:
        """Of the trained network, as its training passes give them."""
        step = engine.measure(batch)
        parts = engine._policy.values(list(step.micro_batches()))
        values = gather(list(zip(step.micro_batches(), parts, strict=False)), step.counts, engine._parallel)
        return [float(v[-1]) for v in values]

    from rljob_trainer.megatron.huggingface import write_hugging_face
    from rljob_trainer.megatron.step import gather

    trained, own = run_engines(4, {"": (spec, train)}, CASES[case].objective)[""]
    network = classifier(tmp_path / "exported")
    assert equal({name: p.detach() for name, p in network.named_parameters()}, trained)
    assert float(trained["score.weight"].abs().max()) > 0
    with torch.no_grad():
        theirs = [score(network, t).item() for t in batch.samples]
    judged = {"rewards": [{"model": {"path": str(tmp_path / "exported")}}]}
    sizes = {"tensor": 2, "pipeline": 2}
    job_spec = changed(job(paths["policy"], trainer={"nodes": 4, "parallelism": sizes}), **judged)
    read = run_engines(4, {"": (job_spec, lambda engine: engine.measure(batch).batch.columns.reward.tolist())})[""]
    assert read == pytest.approx(own, abs=1e-6)
    assert own == pytest.approx(theirs, abs=1e-5)


def classifier(directory: Path) -> Any:
    """As transformers reads it, with every tensor found and none left over."""
    from transformers import AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification
    network, found = kind.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert network.config.num_labels == 1
    return network
