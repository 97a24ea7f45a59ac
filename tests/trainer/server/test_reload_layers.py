"""The layer-wise reload of real models of vLLM: right updates pass, and what is lost is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Module
from vllm.config import VllmConfig

from rljob_trainer.server.weights.reload import FIX, LostUpdateError, load
from tests.trainer.server.vllm_models import Tensors, engine, policy, served

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


def update(model: Module, config: VllmConfig, tensors: Tensors) -> None:
    with torch.no_grad():
        load(model, config.model_config, iter(tensors.items()), in_place=False)


def computed(model: Any) -> torch.Tensor:
    """By the layers that come without attention: embedding, a feed-forward layer, output layer."""
    with torch.no_grad():
        states = model.model.embed_tokens(torch.arange(PADDED))
        logits: torch.Tensor = model.compute_logits(model.model.layers[0].mlp(states))
    return logits


def without(tensors: Tensors, part: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if part not in name}


def test_a_tied_model_with_padded_rows_is_updated(tied: tuple[Tensors, Tensors], config: VllmConfig) -> None:
    old, new = tied
    model, fresh = served(config, old), computed(served(config, new))
    assert not torch.equal(computed(model), fresh)
    update(model, config, new)
    assert torch.equal(computed(model), fresh)


def test_padded_rows_do_not_hide_that_the_embedding_got_nothing(
    tied: tuple[Tensors, Tensors], config: VllmConfig
) -> None:
    old, new = tied
    with pytest.raises(LostUpdateError, match=r"reach model\.embed_tokens\.weight, lm_head\.weight: "):
        update(served(config, old), config, without(new, "embed_tokens"))


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
    biased: tuple[Tensors, Tensors], config: VllmConfig, part: str, lost: str
) -> None:
    old, new = biased
    with pytest.raises(LostUpdateError, match=rf"does not reach {lost}") as raised:
        update(served(config, old), config, without(new, part))
    assert str(raised.value).endswith(FIX)
    assert "remove rollout.vllmArgs.quantization" in FIX
