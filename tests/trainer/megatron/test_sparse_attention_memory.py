"""What is kept of sparse attention's choices until the backward pass, against what sizing counts of them in activations."""

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api import names
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.stage import passes, shares
from rljob_api.spec import RLJobSpec
from rljob_trainer.algorithm.cross_entropy import CrossEntropyObjective
from rljob_trainer.wire.batch import Batch
from rljob_trainer.wire.trajectory import Trajectory
from trainer.megatron.gang import changed
from trainer.megatron.models import job, make_model, train_step
from trainer.megatron.test_supervised import given as demonstrated
from trainer.ranks import run_ranks

TOKENS, TOGETHER, SAMPLES = 16, 2, 8
"""Of a sample, of those without its last token, which predicts nothing; samples of a micro-batch; and of the step."""
CUTS: dict[str, dict[str, Any]] = {
    "all kept": {},
    "full recomputation": {"recompute": {"granularity": "full"}},
    "two layers at a time": {"recompute": {"granularity": "full", "layers": 2}},
    "two of four layers": {"recompute": {"granularity": "full", "method": "block", "layers": 2}},
    "attention recomputed": {"recompute": {"granularity": "selective", "modules": ["core_attn"]}},
    "tensor": {"nodes": 2, "parallelism": {"tensor": 2}},
    "context": {"nodes": 2, "parallelism": {"context": 2}},
    "pipeline": {"nodes": 2, "parallelism": {"pipeline": 2}},
    "pipeline, attention recomputed": {
        "nodes": 2,
        "parallelism": {"pipeline": 2},
        "recompute": {"granularity": "selective", "modules": ["core_attn"]},
    },
    "pipeline, recomputed": {"nodes": 2, "parallelism": {"pipeline": 2}, "recompute": {"granularity": "full"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["glm_moe_dsa", "glm_moe_dsa, shared"])
def test_plans_count_the_choices_that_are_kept(megatron: None, tmp_path: Path, kind: str) -> None:
    """But for one layer, where those that are not computed again are through with their backward pass when the others are."""
    source = make_model(tmp_path / "model", kind, tied=False)
    shape = Shape.of(json.loads((source / "config.json").read_text()))
    assert shape and shape.latent
    shared = shape.latent.indexed < 1
    for name, trainer in CUTS.items():
        spec = changed(
            job(source),
            task="sft",
            algorithm={},
            rollout={},
            data={"maxTokens": TOKENS + 1},
            train={"tokensPerMicroBatch": TOGETHER * TOKENS, "samplesPerStep": SAMPLES},
            trainer={"device": "cpu", "nodes": 1, "parallelism": {}} | trainer,
        )
        found = max(run_ranks(spec.trainer.nodes, lambda spec=spec: measured(spec)))
        above = (counted(spec, shape) - found) / (TOGETHER * TOKENS * (4 * shape.latent.chosen + 8))
        assert above == (name == "two of four layers" and not shared), name


def counted(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of choices in the activations of the stage that has most."""
    assert shape.latent
    without = replace(shape, latent=replace(shape.latent, chosen=0))
    whole, rest = (
        [passes(spec, of, share, names.ROLE_TRAINER)[1] for share in shares(spec, of)] for of in (shape, without)
    )
    return max(a - b for a, b in zip(whole, rest, strict=True))


def measured(spec: RLJobSpec) -> int:
    """Bytes of choices that a rank keeps after the forward pass of a layer or of all layers: the most of a step."""
    from rljob_trainer.megatron.engine import Engine
    from rljob_trainer.megatron.plain_torch import sparse_attention

    engine, most = Engine(spec, lambda: None, CrossEntropyObjective(spec.sft)), 0
    made: list[weakref.ref[torch.Tensor]] = []
    choose = sparse_attention.choices

    def chosen(*given: Any) -> list[Any]:
        found = choose(*given)
        made.extend(weakref.ref(tensor) for one in found for tensor in (one.tokens, one.last))
        return found

    def look(*_: Any) -> None:
        nonlocal most
        storages = [tensor.untyped_storage() for ref in made if (tensor := ref()) is not None]
        most = max(most, sum({s.data_ptr(): s.nbytes() for s in storages}.values()))

    sparse_attention.choices = chosen  # the same ones, and which tensors they are
    for chunk in engine._policy.modules:
        for module in (chunk, *(m for m in chunk.modules() if isinstance(m, sparse_attention.SparseAttention))):
            module.register_forward_hook(look)
    train_step(engine, batch())
    return most


def batch() -> Batch:
    """Samples that are as long as they can be."""
    return Batch.of(1, [demonstrated(sample) for sample in samples()], {})


def samples() -> Iterator[Trajectory]:
    for at in range(SAMPLES):
        tokens = tuple(torch.randint(160, (TOKENS + 1,), generator=torch.Generator().manual_seed(at)).tolist())
        prompt, response = tokens[:4], tokens[4:]
        yield Trajectory.of_response(
            prompt,
            response,
            [-1.0] * len(response),
            policy_step=0,
            prompt_index=at,
            group=at,
            sample=0,
            finish_reason="stop",
            reward=0.0,
            data_source="test",
        )
