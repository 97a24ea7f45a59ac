"""A vision tower that attends to all images at once sees in each what it sees when they come one after the other."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rljob_trainer.megatron import tower
from trainer.megatron.kinds import make_config
from trainer.megatron.operators import Operators


def by_sequence(q: Any, k: Any, v: Any, starts: Any, of_keys: Any, longest: int, _: int, *, scale: float) -> Any:
    """What torch's kernel of GPUs computes, by its documentation: rows [t, heads, d]."""
    assert starts.dtype is torch.int32
    assert starts is of_keys
    assert longest == starts.diff().max()
    parts = [
        scaled_dot_product_attention(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), scale=scale)[0].transpose(0, 1)
        for a, b in pairwise(starts.tolist())
    ]
    return torch.cat(parts)


TOWERS = pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
GRIDS = torch.tensor([(1, 4, 4), (1, 2, 6), (1, 8, 4)])


def make_tower(kind: str) -> Any:
    import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl as first
    import transformers.models.qwen3_vl.modeling_qwen3_vl as second

    built = {"qwen2_5_vl": first.Qwen2_5_VisionTransformerPretrainedModel, "qwen3_vl": second.Qwen3VLVisionModel}[kind]
    return built._from_config(make_config(kind).vision_config).eval()


def make_pixels() -> torch.Tensor:
    return torch.randn(int(GRIDS.prod(1).sum()), 3 * 2 * 4 * 4)


@TOWERS
def test_a_tower_sees_the_same_in_all_images_at_once(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(tower, "varlen_attn", by_sequence)
    AttentionInterface.register(tower.AT_ONCE, tower.attend)
    built, pixels = make_tower(kind), make_pixels()
    one_by_one = built(pixels, grid_thw=GRIDS).pooler_output
    built.config._attn_implementation = tower.AT_ONCE
    torch.testing.assert_close(built(pixels, grid_thw=GRIDS).pooler_output, one_by_one)


@TOWERS
def test_a_tower_that_is_given_its_tables_sees_the_same_and_what_it_launches_does_not_grow_with_images(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The second pass over such pictures, with the attention of GPUs as one operator."""
    built, pixels = make_tower(kind), make_pixels()
    assert torch.equal(tower.run_tower(built, pixels, GRIDS).pooler_output, built(pixels, grid_thw=GRIDS).pooler_output)
    monkeypatch.setattr(tower, "varlen_attn", lambda q, *_, **__: q + 0)
    AttentionInterface.register(tower.AT_ONCE, tower.attend)
    built.config._attn_implementation = tower.AT_ONCE
    few, many = (_second_pass(built, pixels.repeat(count, 1), GRIDS.repeat(count, 1)) for count in (1, 4))
    assert sum(few.values()) > 50
    assert many == few, many - few
    assert "aten._local_scalar_dense.default" not in few, "a number of the device's is waited for"


def test_weights_of_learnt_positions_sum_to_one_for_each_patch() -> None:
    known = tower.tables(((1, 4, 4),), 2, None, 4, torch.device("cpu"))
    assert known["interp_indices"].shape == known["interp_weights"].shape == (16, 4)
    assert torch.equal(known["interp_weights"].sum(1), torch.ones(16))


def _second_pass(built: Any, pixels: torch.Tensor, grids: torch.Tensor) -> Any:
    tower.run_tower(built, pixels, grids)
    with Operators() as operators:
        tower.run_tower(built, pixels, grids)
    return operators.found


@pytest.mark.parametrize(
    ("gpu", "dtype", "heads", "chosen"),
    [
        (True, torch.bfloat16, 4, True),
        (False, torch.bfloat16, 4, False),
        (True, torch.float32, 4, False),
        (True, torch.bfloat16, 16, False),
    ],
    ids=["on a GPU", "on a CPU", "in 32 bits", "heads of 4 numbers"],
)
def test_the_kernel_is_taken_where_it_exists(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, dtype: torch.dtype, heads: int, chosen: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    config = make_config("qwen2_5_vl").vision_config
    config.hidden_size, config.num_heads = 64, heads
    model, text = torch.nn.Module(), torch.nn.Module()
    model.visual = torch.nn.Module()
    model.visual.config, before = config, config._attn_implementation
    tower.choose_attention([model, text], dtype)
    assert config._attn_implementation == (tower.AT_ONCE if chosen else before)
