"""Logits are computed for the tokens in the loss only, and what is learnt is what the logits of all tokens teach."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory, environment, prompt
from trainer.megatron.models import changed_samples, job, make_batch, make_model, train_step
from trainer.ranks import run_ranks

pytestmark = pytest.mark.slow

VOCABULARY = 160
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "TP2": {"tensor": 2},
    "TP2 without sequence parallelism": {"tensor": 2, "sequence": False},
    "PP2": {"pipeline": 2},
    "CP2": {"context": 2},
    "TP2 CP2": {"tensor": 2, "context": 2},
}


class Result(NamedTuple):
    """Of two steps on one rank."""

    metrics: list[dict[str, float]]
    old: torch.Tensor
    """Log-probabilities of the response tokens of this rank's copy, before the second step's update."""
    learnt: list[bool]
    """Whether each of these tokens is in the loss."""
    weights: dict[str, torch.Tensor]
    rows: int
    """Rows of logits that this rank's output layer made in the second step."""


def with_tools(sample: Trajectory) -> Trajectory:
    """A long prompt, and a tool's answer in the middle of the response."""
    draw = random.Random(sample.group)
    words = lambda n: [draw.randrange(VOCABULARY) for _ in range(n)]  # noqa: E731
    first, *rest = sample.segments
    wrote = rest[0]
    return replace(sample, segments=(prompt([*words(12), *first.tokens]), wrote, environment(words(9)), wrote))


@contextmanager
def of_all_tokens(whole: bool) -> Iterator[None]:
    """Networks that are made inside compute the logits of all tokens, if `whole`, as megatron-core does without it."""
    from rljob_trainer.megatron.network import Network

    make = Network.__init__

    def made(self: Any, model: Any, *arguments: Any, **named: Any) -> None:
        model.config.fp8_output_proj = whole
        make(self, model, *arguments, **named)
        model.config.fp8_output_proj = False

    Network.__init__ = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        Network.__init__ = make  # type: ignore[method-assign]


def counting(engine: Any, heights: list[int]) -> None:
    for module in engine._model.modules:
        if module.post_process:
            module.output_layer.register_forward_hook(lambda *call: heights.append(call[2][0].shape[0]))


def trained(model: Path, sizes: dict[str, Any], batches: list[Batch], whole: bool, **train: Any) -> Result:
    from rljob_trainer.megatron.engine import Engine

    world = sizes.get("tensor", 1) * sizes.get("pipeline", 1) * sizes.get("context", 1)
    trainer = {"nodes": world, "parallelism": sizes}
    settings = {"tokensPerMicroBatch": 128, "miniBatches": 2, "batches": {"replay": "/recorded"}} | train
    heights = list[int]()
    with of_all_tokens(whole):
        engine = Engine(job(model, trainer=trainer, **settings), lambda: None)
        counting(engine, heights)
        metrics = [train_step(engine, batches[0])]
        heights.clear()
        step = engine.measure(batches[1])
        old = step.own("old_log_probs").clone()
        metrics.append(engine.update(step, engine.objective.advantages(step)))
    weights = {name: tensor.clone() for name, tensor in engine.export()}
    return Result(metrics, old, step.learnt().bool().tolist(), weights, sum(heights))


def on_ranks(sizes: dict[str, Any], train: Callable[[], Result]) -> list[Result]:
    return run_ranks(sizes.get("tensor", 1) * sizes.get("pipeline", 1) * sizes.get("context", 1), train)


Lab = Callable[[bool], tuple[Path, list[Batch]]]


@pytest.fixture(scope="module")
def lab(megatron: None, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A model, whose output layer may be the embedding, and two steps."""

    @cache
    def made(tied: bool) -> tuple[Path, list[Batch]]:
        model = make_model(tmp_path_factory.mktemp("model") / "m", tied=tied, vocabulary=VOCABULARY)
        return model, [changed_samples(make_batch(model, step), with_tools) for step in (1, 2)]

    return made


@pytest.mark.parametrize(("layout", "tied"), [*((layout, False) for layout in LAYOUTS), ("TP2", True), ("PP2", True)])
def test_tokens_outside_of_the_loss_have_no_logits_and_nothing_else_changes(lab: Lab, layout: str, tied: bool) -> None:
    (model, batches), sizes = lab(tied), LAYOUTS[layout]
    few = on_ranks(sizes, lambda: trained(model, sizes, batches, whole=False))
    all_ = on_ranks(sizes, lambda: trained(model, sizes, batches, whole=True))
    for ours, theirs in zip(few, all_, strict=True):
        for mine, other in zip(ours.metrics, theirs.metrics, strict=True):
            assert mine == pytest.approx(other, rel=1e-5, abs=1e-6)
        learnt = torch.tensor(ours.learnt)
        assert (ours.old - theirs.old)[learnt].abs().max() < 1e-5
        assert not ours.old[~learnt].any() and theirs.old[~learnt].all()
        assert ours.metrics[-1]["train/grad_norm"] > 0
        assert max(float((w - theirs.weights[name]).abs().max()) for name, w in ours.weights.items()) <= 1e-6
    passes = 3  # for old log-probabilities and the reference's, and in training
    learnt_tokens = sum(sample.learnt_length for sample in batches[1].samples)
    assert sum(rank.rows for rank in few) == sizes.get("tensor", 1) * passes * learnt_tokens
    assert sum(rank.rows for rank in all_) > 3 * sum(rank.rows for rank in few)
