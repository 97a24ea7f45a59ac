"""What a plan counts of the tokens that indexers choose, with GLM-5 and GLM-5.2, by hand. That the trainer keeps as much is measured in
tests/trainer/megatron/test_sparse_attention_memory.py."""

from dataclasses import replace
from typing import Any

import pytest

from api.glm_5 import FEWER_INDEXERS, PUBLISHED
from api.specs import make_spec
from rljob_api import names
from rljob_api.sizing.devices import device
from rljob_api.sizing.memory import phases
from rljob_api.sizing.network import cards
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.speed import speed
from rljob_api.sizing.stage import passes, shares
from rljob_api.sizing.training import KERNELS_OF_EXPERTS, Machine
from rljob_api.spec import RLJobSpec

TOKENS = 16384
LAYER = TOKENS * (4 * 2048 + 8)
"""Bytes of a micro-batch and layer: 2,048 numbers of four bytes for each token, and the last one that it may attend to in eight."""
FULL = {"granularity": "full"}
ATTENTION = {"recompute": {"granularity": "selective", "modules": ["core_attn"]}}


def shape_of(**keys: Any) -> Shape:
    shape = Shape.of(PUBLISHED | keys)
    assert shape
    return shape


ALL, FEW = shape_of(), shape_of(**FEWER_INDEXERS)


def without(shape: Shape) -> Shape:
    """The same model, if a query attended to all tokens."""
    assert shape.latent
    return replace(shape, latent=replace(shape.latent, chosen=0))


def sft(longest: int = TOKENS, **trainer: Any) -> RLJobSpec:
    sizes = {"tensor": 8, "pipeline": 2, "expert": 64, "expertTensor": 1} | trainer.pop("parallelism", {})
    return make_spec(
        task="sft",
        model={"path": "/models/glm-5", "dtype": "bfloat16"},
        data={"maxTokens": longest},
        train={"samplesPerStep": 64, "tokensPerMicroBatch": TOKENS},
        trainer={"device": "gpu", "nodes": 32, "processesPerNode": 8, "parallelism": sizes} | trainer,
    )


def activations(spec: RLJobSpec, shape: Shape) -> float:
    """Layers of one micro-batch whose choices are counted, of the stage that has most."""
    counted, others = (
        [passes(spec, of, share, names.ROLE_TRAINER)[1] for share in shares(spec, of)] for of in (shape, without(shape))
    )
    return max(a - b for a, b in zip(counted, others, strict=True)) / LAYER


@pytest.mark.parametrize(
    ("shape", "trainer", "layers"),
    [
        (ALL, {}, 39 * 2),
        (ALL, {"recompute": FULL}, 1),
        (ALL, {"recompute": FULL | {"layers": 3}}, 3),
        (ALL, {"recompute": FULL | {"method": "block", "layers": 30}}, 9 * 2 + 1),
        (ALL, {"recompute": {"granularity": "selective", "modules": ["moe_act"]}}, 39 * 2),
        (ALL, ATTENTION, 1),
        (ALL, ATTENTION | {"parallelism": {"pipeline": 1}}, 1),
        (ALL, ATTENTION | {"parallelism": {"pipeline": 4}}, 1),
        (ALL, {"parallelism": {"tensor": 4}}, 39 * 2),
        (ALL, {"parallelism": {"context": 2}}, 39),
        (ALL, {"parallelism": {"pipeline": 1}}, 78),
        (FEW, {}, 39 * 2 * 21 / 78),
        (FEW, {"recompute": FULL}, 39 * 2 * 21 / 78),
        (FEW, ATTENTION, 39 * 2 * 21 / 78),
    ],
)
def test_layers_whose_choices_are_kept(shape: Shape, trainer: dict[str, Any], layers: float) -> None:
    """Two stages of 39 layers, of which the first has two micro-batches. Those of layers that share choices stay whatever is computed again."""
    assert activations(sft(**trainer), shape) == pytest.approx(layers, abs=1e-6)


@pytest.mark.parametrize(("longest", "layers"), [(2048, 0), (2049, 78)])
def test_in_short_samples_nothing_is_chosen(longest: int, layers: int) -> None:
    assert activations(sft(longest), ALL) == pytest.approx(layers)


@pytest.mark.parametrize(("shape", "layers"), [(ALL, 1), (FEW, 39 * 21 / 78)])
def test_a_forward_pass_keeps_what_later_layers_take(shape: Shape, layers: float) -> None:
    given = sft().model_copy(update={"evaluation": sft().evaluation.model_copy(update={"every_steps": 1})})
    scoring, others = ({p.name: p for p in phases(given, of, 2**37)}["score"] for of in (shape, without(shape)))
    assert (scoring.total - others.total) / LAYER == pytest.approx(layers)


@pytest.mark.parametrize(("recompute", "passes"), [({}, 1), (FULL, 2)])
def test_scores_and_a_second_attention_take_seconds(recompute: dict[str, Any], passes: int) -> None:
    """On an H200, of 32 heads of 128 on each tensor-parallel rank: 2 x 128 operations at 67e12 a second and 32 bytes at 0.8 of 4.8e12. Choices that
    are shared are not made again."""
    gpu = device("h200")
    assert gpu.rates
    machine = Machine(gpu.rates, gpu.bytes, cards("8x400g"))

    def seconds(shape: Shape, **sizes: Any) -> float:
        return speed(sft(recompute=recompute, parallelism={"pipeline": 1} | sizes), shape, machine).train

    pairs, samples = TOKENS**2 / 2, 64 / 32
    scoring = pairs * 32 * (2 * 128 / 67e12 + 32 / (0.8 * 4.8e12))
    attending = pairs * 64 * 2 * (192 + 64 + 256) / 8 / (KERNELS_OF_EXPERTS * 989e12)
    assert seconds(ALL) - seconds(without(ALL)) == pytest.approx(
        78 * samples * (passes * scoring + attending), rel=0.01
    )
    assert seconds(FEW) - seconds(without(FEW)) == pytest.approx(
        78 * samples * (21 / 78 * scoring + attending), rel=0.01
    )
