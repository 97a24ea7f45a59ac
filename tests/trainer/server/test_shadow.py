"""A policy that reached a server in pieces is the one that a server loads from disk, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearBase

from tests.trainer.server.vllm_models import Makes, engine, in_place, loaded, policy, served, shadow, update

pytestmark = pytest.mark.slow
KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma3_text", "glm4", "phi3")
UPDATES = 2
WAYS = [
    pytest.param(in_place, False, id="in place, packed", marks=pytest.mark.extra),
    pytest.param(in_place, True, id="in place, as loaded"),
    pytest.param(shadow, False, id="shadow, packed"),
    pytest.param(shadow, True, id="shadow, as loaded", marks=pytest.mark.extra),
]


def state(model: Module) -> dict[str, torch.Tensor]:
    """What the model computes with: parameters, buffers, and what linear layers make of numbers, since CPUs pack their weights."""
    found = {name: tensor.clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, LinearBase) and hasattr(layer, "cpu_linear"):
                width = getattr(layer, "input_size_per_partition", layer.input_size)
                numbers = torch.arange(3.0 * width).view(3, -1).sin()
                output: Any = layer(numbers)
                found[f"{name}()"] = output[0] if isinstance(output, tuple) else output
    return found


def different(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    assert a.keys() == b.keys()
    return [name for name, tensor in a.items() if not torch.equal(tensor, b[name])]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("target", "keeps"), WAYS)
def test_an_update_in_pieces_is_what_is_loaded_from_disk(tmp_path: Path, kind: str, target: Makes, keeps: bool) -> None:
    """`keeps`: as on a GPU, where vLLM computes with most weights as they are loaded."""
    policies = [policy(tmp_path / str(seed), seed, kind) for seed in range(UPDATES + 1)]
    make = loaded if keeps else served
    with engine(tmp_path / "0") as config:
        expected = [state(make(config, tensors)) for tensors in policies]
        assert different(expected[0], expected[1])
        model = make(config, policies[0])
        made = target(model, config, keeps)
        for tensors, fresh in zip(policies[1:], expected[1:], strict=True):
            before = state(model) if target is shadow else None
            if before:
                with torch.no_grad():
                    made.load(tensors.items())
                assert different(before, state(model)) == [], "what generates was touched"
            update(made, tensors, pieces=3)
            assert different(fresh, state(model)) == []


def test_a_shadow_is_as_large_as_the_parameters(tmp_path: Path) -> None:
    tensors = policy(tmp_path, 1, "qwen3_moe")
    with engine(tmp_path) as config:
        model = loaded(config, tensors)
        made: Any = shadow(model, config, True)
        assert made.bytes == sum(p.nbytes for p in model.parameters())
