"""Experts of the trainer's passes: those that transformers is made to choose, in every layout; and a step's updates as the old policy routed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_trainer.failure import ConfigurationError
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Experts, Trajectory
from trainer.megatron.gang import column
from trainer.megatron.kinds import make_config
from trainer.megatron.models import changed_samples, job, load_model, make_batch, random_model, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

LAYERS, EXPERTS, CHOSEN = 4, 4, 2
MANY = 260
"""Experts, too many for a byte."""
LAYOUTS = [
    pytest.param(1, {}, EXPERTS, id="one rank", marks=pytest.mark.extra),
    pytest.param(1, {}, MANY, id="one rank, many experts"),
    pytest.param(2, {"context": 2}, EXPERTS, id="context 2", marks=pytest.mark.extra),
    pytest.param(2, {"expert": 2}, EXPERTS, id="expert 2", marks=pytest.mark.extra),
    pytest.param(4, {"tensor": 2, "pipeline": 2}, EXPERTS, id="tensor 2, pipeline 2"),
]


def correction(replay: str) -> dict[str, Any]:
    return {"rolloutCorrection": {"importanceSampling": "token", "routerReplay": replay}}


def routed(model: Path, batch: Batch, replay: str, **layout: Any) -> list[torch.Tensor]:
    """Rank 0's choices of experts, one per layer and micro-batch in the order of the passes: measured, then trained."""

    def on_a_rank() -> Any:
        from megatron.core.transformer.moe.router import TopKRouter

        from rljob_trainer.megatron.engine import Engine

        optimizer = {"learningRate": 0.02}
        spec = job(model, algorithm=correction(replay), miniBatches=2, optimizer=optimizer, **layout)
        engine, found = Engine(spec, lambda: None), []
        for module in engine._model.modules:
            for part in module.modules():
                if isinstance(part, TopKRouter):
                    part.register_forward_hook(lambda _, inputs, outputs: found.append(outputs[1].detach().clone()))
        train_step(engine, batch)
        return found

    return run_ranks(layout["tensor"], on_a_rank)[0]


def differing(found: list[torch.Tensor]) -> list[int]:
    """Choices of the second half that are others than in the first."""
    half = len(found) // 2
    return [int((a != b).any(-1).sum()) for a, b in zip(found[:half], found[half:], strict=True)]


def model_of(directory: Path, experts: int) -> Path:
    config = make_config("qwen3_moe")
    config.update({"num_experts": experts})
    random_model(config, 0).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("experts", [EXPERTS, pytest.param(MANY, marks=pytest.mark.extra)])
def test_updates_route_as_the_old_policy_did(megatron: None, tmp_path: Path, experts: int) -> None:
    model = model_of(tmp_path, experts)
    batch = make_batch(model)
    free, replayed = (routed(model, batch, replay, dtype="bfloat16", tensor=2) for replay in ("none", "trainer"))
    assert len(free) == len(replayed) > 4
    assert differing(free)[0] == 0 and any(differing(free)), "the first update moves routers: else no test"
    assert not any(differing(replayed))


def some_experts(length: int, count: int, draw: np.random.Generator) -> Experts:
    """Of the last ones of so many."""
    choices = draw.permuted(np.tile(np.arange(count - EXPERTS, count), (length, LAYERS, 1)), axis=-1)
    return choices[..., :CHOSEN].astype(np.uint8 if count <= 256 else np.int16)


@torch.no_grad()
def response_log_probs(policy: Any, sample: Trajectory, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Of transformers, whose routers choose the sample's experts instead of the best."""
    assert sample.routed_experts is not None
    chosen = iter(torch.from_numpy(sample.routed_experts.astype(np.int64)).unbind(1))

    def choose(scores: torch.Tensor, count: int, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
        experts = next(chosen)
        return scores.gather(dim, experts), experts

    tokens = torch.from_numpy(sample.tokens.astype(np.int64))
    with monkeypatch.context() as patched:
        patched.setattr(torch, "topk", choose)
        logits = policy(tokens[None, :-1]).logits[0]
    assert next(chosen, None) is None, "every layer has chosen"
    return logits.log_softmax(-1).gather(1, tokens[1:, None])[sample.prompt_length - 1 :, 0]


@pytest.mark.parametrize(("ranks", "layout", "experts"), LAYOUTS)
def test_the_experts_of_the_rollouts_are_those_of_the_trainer_in_every_layout(
    megatron: None, tmp_path: Path, ranks: int, layout: dict[str, Any], experts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, draw = model_of(tmp_path, experts), np.random.default_rng(0)
    drawn = lambda s: replace(s, routed_experts=some_experts(len(s) - 1, experts, draw))  # noqa: E731
    batch = changed_samples(make_batch(model), drawn)
    trainer = {"device": "cpu", "nodes": ranks, "parallelism": layout}
    spec = job(model, algorithm=correction("rollout"), miniBatches=2, trainer=trainer)

    def on_a_rank() -> Any:
        from rljob_trainer.megatron.engine import Engine

        engine = Engine(spec, lambda: None)
        step = engine.measure(batch.part(engine.parts(batch.columns)[engine.data_rank]))
        measured = column(step, "old_log_probs")
        with pytest.raises(ConfigurationError, match="recorded without the experts"):
            engine.measure(changed_samples(batch, lambda s: replace(s, routed_experts=None)))
        return measured, engine.update(step, engine.objective.advantages(step))

    measured, metrics = run_ranks(ranks, on_a_rank)[0]
    policy = load_model(model)
    for mine, sample in zip(measured, batch.samples, strict=True):
        theirs = response_log_probs(policy, sample, monkeypatch)
        assert (mine - theirs).abs().max() < 1e-4
    free = np.concatenate([s.response_log_probs for s in batch.samples])
    assert np.abs(torch.cat(measured).numpy() - free).mean() > 1e-3, "the model's own choice is another one"
    assert metrics["train/approx_kl"] >= 0
