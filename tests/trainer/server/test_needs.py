"""What workers of a server say they need, for every family and layout: loaded from that alone, a worker has what it loads from whole files."""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from rljob_trainer.server.weights.expected import ExpectedTensors
from rljob_trainer.server.weights.needs import needs
from rljob_trainer.server.weights.partial_tensor import PartialTensor
from rljob_trainer.server.weights.shadow import Shadow
from rljob_trainer.wire.weights.slices import NOTHING, Slice
from tests.trainer.server.vllm_models import CPU, Tensors, engine, loaded_from, policy, without_others

pytestmark = pytest.mark.slow
VOCABULARY = 200
"""No multiple of what vLLM pads it to."""


class Layout(NamedTuple):
    """Of a server."""

    tensor: int
    pipeline: int = 1
    copies: int = 1
    experts: bool = False


def part_of(tensor: torch.Tensor, part: Slice) -> torch.Tensor:
    return torch.cat([tensor.narrow(part.dim, a, b - a) for a, b in part.ranges], part.dim).contiguous()


def needed(path: Path, tensors: Tensors, layout: Layout, rank: int) -> dict[str, Slice]:
    """What a worker needs. With nothing else it has what it loads from files."""
    tensor, pipeline, copies, experts = layout
    with without_others(), engine(path, rank, tensor, 0, experts, pipeline, copies) as config, torch.no_grad():
        model = loaded_from(path, config)
        expected = {name: parameter.clone() for name, parameter in model.named_parameters()}
        found = needs(model, config.model_config, ExpectedTensors.of(path, "float32").described)
        for parameter in model.parameters():
            parameter.fill_(7)
        given = (
            (name, PartialTensor.of(name, tuple(t.shape), part, part_of(t, part)) if part else t)
            for name, t in tensors.items()
            if (part := found.get(name)) != NOTHING
        )
        shadow = Shadow(model, config.model_config, CPU, keeps=True)
        shadow.load(given)
        shadow.check()
        shadow.apply()
        assert [name for name, own in model.named_parameters() if not torch.equal(own, expected[name])] == []
    return found


def received(tensors: Tensors, found: dict[str, Slice]) -> float:
    """Share of the whole."""
    sizes = (torch.Size(found[name].of(t.shape)).numel() if name in found else t.numel() for name, t in tensors.items())
    return sum(sizes) / sum(tensor.numel() for tensor in tensors.values())


ALONE = {"gpt_oss": 0.52, "phi3": 0.75, "deepseek_v3": 0.75, "qwen3_next": 0.75}
"""Share that a worker of two receives at most, where much is small, or in one tensor with what others need."""


@pytest.mark.parametrize(
    "kind", ["qwen2", "qwen3_moe", "phi3", "deepseek_v3", "gpt_oss", "qwen3_next", "glm4_moe", "minimax_m2"]
)
def test_workers_of_a_tensor_parallel_server_receive_their_slices(tmp_path: Path, kind: str) -> None:
    tensors = policy(tmp_path, 1, kind, vocabulary=VOCABULARY)
    found = [needed(tmp_path, tensors, Layout(2), rank) for rank in range(2)]
    assert all(received(tensors, own) < ALONE.get(kind, 0.6) for own in found)
    for name in tensors:
        own = [one.get(name) for one in found]
        assert None in own or own[0].length + own[1].length >= tensors[name].shape[own[0].dim], "nothing is lacking"  # type: ignore[union-attr]


def test_a_worker_whose_part_of_a_small_vocabulary_is_padding_alone_is_filled_by_its_loaders(tmp_path: Path) -> None:
    tensors = policy(tmp_path, 1, "qwen2", vocabulary=20)
    first, second = (needed(tmp_path, tensors, Layout(2), rank).get("model.embed_tokens.weight") for rank in range(2))
    assert first is None
    assert second and second.length == 1


LAYOUTS = {
    "stages of slices": Layout(2, pipeline=2),
    "experts in copies": Layout(1, copies=2, experts=True),
    "experts in copies of slices": Layout(2, copies=2, experts=True),
    "slices of experts": Layout(2, copies=2),
    "more workers than heads of keys": Layout(4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_workers_of_any_layout_receive_what_they_load(tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    tensors = policy(tmp_path, 1, "qwen3_moe", vocabulary=VOCABULARY)
    ranks = range(layout.tensor * layout.pipeline * layout.copies)
    found = [needed(tmp_path, tensors, layout, rank) for rank in ranks]
    keys = [own.get("model.layers.0.self_attn.k_proj.weight") for own in found]
    if layout.tensor == 4:
        assert keys[0] == keys[1] != keys[2] == keys[3], "two workers have the same head"
    for rank, expert in product(ranks, range(4)):
        matrices = {found[rank].get(f"model.layers.0.mlp.experts.{expert}.{m}_proj.weight") for m in ("gate", "down")}
        if layout.experts:
            assert matrices == {NOTHING} or matrices == {None}
    norms = [[found[r].get(f"model.layers.{i}.input_layernorm.weight") for r in ranks] for i in (0, 3)]
    assert norms[0].count(None) == len(ranks) // layout.pipeline == norms[1].count(None)
