"""Updates of real models of vLLM, in place and through a shadow: right ones pass, and what is lost is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig

from rljob_trainer.server.weights.reload import FIX, LostUpdateError
from tests.trainer.server.vllm_models import Makes, Tensors, engine, in_place, policy, served, shadow, update

pytestmark = pytest.mark.slow
PADDED = 130
"""vLLM has the rows of embeddings in multiples of 64, and fills those that no file has."""


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Tensors, Tensors]:
    """Tensors of two Llamas whose output layer is the embedding, which has padded rows."""
    old, new = (policy(tmp_path / str(seed), seed, "llama", tied=True, vocabulary=PADDED) for seed in (1, 2))
    assert "lm_head.weight" not in new
    return old, new


@pytest.fixture
def biased(tmp_path: Path) -> tuple[Tensors, Tensors]:
    """Tensors of two Qwen2, of which queries, keys and values have biases."""
    old, new = (policy(tmp_path / str(seed), seed, "qwen2") for seed in (1, 2))
    return old, new


@pytest.fixture
def config(tmp_path: Path) -> Iterator[VllmConfig]:
    with engine(tmp_path / "1") as found:
        yield found


@pytest.fixture(params=[in_place, shadow])
def target(request: pytest.FixtureRequest) -> Makes:
    """Makes what an update is loaded into."""
    made: Makes = request.param
    return made


def computed(model: Any) -> torch.Tensor:
    """By the layers that come without attention: embedding, a feed-forward layer, output layer."""
    with torch.no_grad():
        states = model.model.embed_tokens(torch.arange(PADDED))
        logits: torch.Tensor = model.compute_logits(model.model.layers[0].mlp(states))
    return logits


def without(tensors: Tensors, part: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if part not in name}


def test_a_tied_model_with_padded_rows_is_updated(
    tied: tuple[Tensors, Tensors], config: VllmConfig, target: Makes
) -> None:
    old, new = tied
    model, fresh = served(config, old), computed(served(config, new))
    assert not torch.equal(computed(model), fresh)
    update(target(model, config, False), new)
    assert torch.equal(computed(model), fresh)


def test_padded_rows_do_not_hide_that_the_embedding_got_nothing(
    tied: tuple[Tensors, Tensors], config: VllmConfig, target: Makes
) -> None:
    old, new = tied
    with pytest.raises(LostUpdateError, match=r"reach model\.embed_tokens\.weight"):
        update(target(served(config, old), config, False), without(new, "embed_tokens"))


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("_proj.bias", "model.layers.0.self_attn.qkv_proj.bias"),
        ("down_proj", "model.layers.0.mlp.down_proj.weight"),
        ("layers.1.input_layernorm", "model.layers.1.input_layernorm.weight"),
    ],
    ids=["a parameter of a layer that got another", "a layer with packed weights", "a norm"],
)
def test_what_an_update_does_not_reach_is_named_with_a_fix(
    biased: tuple[Tensors, Tensors], config: VllmConfig, target: Makes, part: str, lost: str
) -> None:
    old, new = biased
    with pytest.raises(LostUpdateError, match=rf"do not reach {lost}") as raised:
        update(target(served(config, old), config, False), without(new, part))
    assert str(raised.value).endswith(FIX)
    assert "remove rollout.vllmArgs.quantization" in FIX


def test_an_update_that_ends_early_leaves_the_model_as_it_was_and_the_next_is_whole(
    biased: tuple[Tensors, Tensors], config: VllmConfig, target: Makes
) -> None:
    old, new = biased
    model, fresh = served(config, old), computed(served(config, new))
    before, made = computed(model), target(model, config, False)
    with torch.no_grad():
        made.load(without(new, "down_proj").items())
    made.abandon()
    assert target is in_place or torch.equal(computed(model), before)
    update(target(model, config, False), new)
    assert torch.equal(computed(model), fresh)
