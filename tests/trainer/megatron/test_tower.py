"""A vision tower that attends to all pictures at once sees in each what it sees when they come one after the other."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rljob_trainer.megatron import tower
from trainer.megatron.models import make_config


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


@pytest.mark.parametrize(
    ("kind", "model"), [("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel"), ("qwen3_vl", "Qwen3VLVisionModel")]
)
def test_a_tower_sees_the_same_in_all_pictures_at_once(monkeypatch: pytest.MonkeyPatch, kind: str, model: str) -> None:
    import transformers.models.qwen2_5_vl.modeling_qwen2_5_vl as first
    import transformers.models.qwen3_vl.modeling_qwen3_vl as second

    monkeypatch.setattr(tower, "varlen_attn", by_sequence)
    AttentionInterface.register(tower.AT_ONCE, tower.attend)
    config = make_config(kind).vision_config
    built = {**vars(first), **vars(second)}[model]._from_config(config).eval()
    grids = torch.tensor([(1, 4, 4), (1, 2, 6), (1, 8, 4)])
    pixels = torch.randn(int(grids.prod(1).sum()), 3 * 2 * 4 * 4)
    one_by_one = built(pixels, grid_thw=grids).pooler_output
    built.config._attn_implementation = tower.AT_ONCE
    torch.testing.assert_close(built(pixels, grid_thw=grids).pooler_output, one_by_one)


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
