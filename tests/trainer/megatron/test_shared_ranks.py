"""Models that share ranks with the policy: reward models, references, and who lies in host memory when."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_trainer.wire.batch import Batch
from trainer.megatron.classifiers import make_classifier, scores_of_prefixes
from trainer.megatron.gang import changed, equal, run_engines, weights
from trainer.megatron.models import changed_samples, job, make_batch, make_model, train_step

pytestmark = pytest.mark.slow

REPLAY = {"batches": {"replay": "/r"}}
EVERYTHING = {"parameters": True, "gradients": True, "optimizer": True}


@pytest.fixture(scope="module")
def classifier(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def batch(model: Path) -> Batch:
    """Of two data sources."""
    made = make_batch(model)
    return changed_samples(made, lambda s: replace(s, data_source="ab"[s.group % 2]))


def test_the_score_of_a_reward_model_is_transformers_score_of_the_whole_sample(
    model: Path, classifier: Path, batch: Batch
) -> None:
    judge = {"path": str(classifier)}
    rewards = [
        {"rule": "exactMatch", "dataSource": "a"},
        {"model": judge, "dataSource": "a", "weight": 0.5},
        {"model": judge | {"offload": False}, "weight": -2.0},
    ]

    def scored(engine: Any) -> tuple[list[float], float]:
        return engine.measure(batch).batch.columns.reward.tolist(), train_step(engine, batch)["reward/with_models"]

    layouts: list[dict[str, int]] = [{"tensor": 2, "pipeline": 2}, {"context": 2}]
    specs = {
        str(sizes): changed(job(model, trainer={"nodes": 4, "parallelism": sizes}, **REPLAY), rewards=rewards)
        for sizes in layouts
    }
    expected = [
        s.reward
        + {"a": 0.5, "b": -2.0}[s.data_source] * float(scores_of_prefixes(classifier, tuple(s.tokens.tolist()))[-1])
        for s in batch.samples
    ]
    for found, mean in run_engines(4, {name: (spec, scored) for name, spec in specs.items()}).values():
        assert found == pytest.approx(expected, abs=1e-5)
        assert mean == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_a_causal_model_is_no_reward_model(model: Path) -> None:
    spec = changed(job(model), rewards=[{"model": {"path": str(model)}}])
    with pytest.raises(AssertionError, match=r"spec\.rewards\[0\]\.model\.path = .* has no classifier's head"):
        run_engines(1, {"": (spec, lambda engine: None)})


def test_the_reference_is_the_same_on_the_host_and_on_the_device(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", seed=7)

    def steps(engine: Any) -> Any:
        return [train_step(engine, make_batch(model, step)) for step in (1, 2)], weights(engine)

    specs = {
        (path, offload): changed(
            job(model, tensor=2, **REPLAY), reference={"path": path and str(path), "offload": offload}
        )
        for path in (None, model, other)
        for offload in (True, False)
    }
    found = run_engines(2, {f"{k}": (spec, steps) for k, spec in specs.items()})
    start = found[f"{(None, True)}"]
    for path in (None, model, other):
        assert equal(found[f"{(path, True)}"], found[f"{(path, False)}"])
    assert equal(start, found[f"{(model, True)}"])
    assert start[0][0]["train/kl"] == 0.0
    assert found[f"{(other, True)}"][0][0]["train/kl"] > 0.01


def test_a_reference_on_the_host_routes_with_its_own_biases(megatron: None, tmp_path: Path) -> None:
    policy, other = (make_model(tmp_path / f"{seed}", "deepseek_v3", tied=False, seed=seed) for seed in (0, 7))

    def kl(engine: Any) -> Any:
        metrics = train_step(engine, make_batch(policy))
        biases = [b.clone() for m in engine._model.modules for n, b in m.named_buffers() if n.endswith("expert_bias")]
        return metrics["train/kl"], biases

    specs = {
        f"{dtype} {path.name} {offload}": changed(
            job(policy, dtype=dtype, **REPLAY), reference={"path": str(path), "offload": offload}
        )
        for dtype in ("float32", "bfloat16")
        for path in (policy, other)
        for offload in (True, False)
    }
    found = run_engines(1, {name: (spec, kl) for name, spec in specs.items()})
    for dtype in ("float32", "bfloat16"):
        assert found[f"{dtype} 0 True"][0] == 0.0
        assert equal(found[f"{dtype} 7 True"], found[f"{dtype} 7 False"])
        assert equal(found[f"{dtype} 7 True"][1], found[f"{dtype} 0 True"][1]) and found[f"{dtype} 7 True"][1]


def test_a_reference_with_other_constants_does_not_take_the_policys_place(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", seed=7)
    file = other / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.5}))
    spec = changed(job(model, **REPLAY), reference={"path": str(other)})
    refused = r"spec\.reference\.path = .*other: has layernorm_epsilon = 0\.5, the policy 1e-06"
    with pytest.raises(AssertionError, match=refused):
        run_engines(1, {"": (spec, lambda engine: None)})
    aside = changed(spec, reference={"offload": False})
    assert run_engines(1, {"": (aside, lambda e: train_step(e, make_batch(model))["train/kl"])})[""] > 0.01


def test_training_is_bit_equal_with_everything_offloaded(model: Path, classifier: Path, tmp_path: Path) -> None:
    """The parts really leave their storages, on CPU too: whoever used one outside its phase would find nothing there."""
    batches = [make_batch(model, step) for step in (1, 2, 3)]

    def steps(engine: Any) -> Any:
        metrics = [train_step(engine, b) for b in batches[:2]]
        directory = tmp_path / f"{engine._spec.trainer.offload.parameters}{engine._spec.model.dtype}"
        writing = engine.save(directory, alongside=False)
        writing.wait()
        writing.finish()
        middle = weights(engine)
        metrics.append(train_step(engine, batches[2]))
        last = weights(engine)
        engine.load(directory)
        return metrics, middle, last, equal(middle, weights(engine)), train_step(engine, batches[2]) == metrics[-1]

    ppo = {"advantage": "gae", "kl": {"coefficient": 0.02, "where": "reward"}}
    layouts = {
        "float32": {"parallelism": {"tensor": 2}},
        "bfloat16": {"overlap": {"gradReduce": True, "paramGather": True}},
    }
    here = {
        dtype: changed(
            job(model, dtype=dtype, trainer={"nodes": 2} | layout, algorithm=ppo, miniBatches=2, **REPLAY),
            critic={"optimizer": {"learningRate": 1e-3}},
            rewards=[{"model": {"path": str(classifier), "offload": False}}],
        )
        for dtype, layout in layouts.items()
    }
    away = {
        dtype: changed(
            spec,
            trainer={"offload": EVERYTHING},
            critic={"offload": EVERYTHING},
            rewards=[{"model": {"path": str(classifier), "offload": True}}],
        )
        for dtype, spec in here.items()
    }
    found = run_engines(2, {f"{d} {n}": (s[d], steps) for n, s in (("here", here), ("away", away)) for d in here})
    for dtype in here:
        assert equal(found[f"{dtype} here"], found[f"{dtype} away"])
        assert found[f"{dtype} here"][3:] == (True, True)


def test_a_copy_of_a_reference_is_not_exchanged_with_parameters_of_another_type(megatron: None) -> None:
    from rljob_trainer.megatron.frozen import HostCopy

    ours, theirs = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    copy, own, reference = HostCopy([ours], [theirs]), ours.weight.clone(), theirs.weight.clone()
    with copy.swapped_in():
        assert torch.equal(ours.weight, reference)
    assert torch.equal(ours.weight, own)
    ours.bfloat16()
    with pytest.raises(RuntimeError, match="another type"), copy.swapped_in():
        pass
