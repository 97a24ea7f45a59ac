"""Runs vision towers efficiently on GPUs: attention over all images of a micro-batch, or all their windows, in one kernel, and index tables that are
computed on the CPU.

The towers are those of transformers. Their torch attention goes through the images one by one (Qwen2_5_VLVisionAttention in
models/qwen2_5_vl/modeling_qwen2_5_vl.py): Qwen2.5-VL has 16 windows in an image of 448 x 448, and launching many small kernels leaves the GPU idle.
transformers accepts other attention functions (`AttentionInterface.register`); one with `flash` in its name gets all sequences at once. It also
accepts precomputed tables (vision_utils.py); otherwise a tower computes them image by image on the GPU, and waits for each.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

AT_ONCE = "rljob_flash"
"""The name under which `attend` is registered."""


def run_tower(tower: Any, pixels: torch.Tensor, grids: torch.Tensor) -> Any:
    """The output of a tower. `pixels`, `grids`: pixel_values and image_grid_thw of MicroBatch.images."""
    window = (tower.window_size, tower.patch_size) if hasattr(tower, "window_size") else None
    side, sizes = getattr(tower, "num_grid_per_side", None), tuple(map(tuple, grids.tolist()))
    places = tables(sizes, tower.spatial_merge_size, window, side, pixels.device)
    return tower(pixels.to(tower.dtype), grid_thw=grids, **places)


@lru_cache(maxsize=32)
def tables(
    sizes: tuple[tuple[int, ...], ...],
    merge: int,
    window: tuple[int, int] | None,
    side: int | None,
    device: torch.device,
) -> dict[str, torch.Tensor | int]:
    """Index tables and longest sequences, by the names of the tower's arguments. Cached for micro-batches with images of the same sizes.

    Args:
        sizes: of each image, as a row of `image_grid_thw`
        window: its width and that of a patch in pixels, of a tower with windows
        side: of the square of learnt positions, of a tower that has some
    """
    grids = torch.tensor(sizes)
    starts = get_vision_cu_seqlens(grids)
    known = {
        "position_ids": get_vision_position_ids(grids, merge),
        "cu_seqlens": starts,
        "max_seqlen": _longest(starts),
    }
    if window:
        order, starts = get_vision_window_index(grids, merge, *window)
        known |= {"window_index": order, "cu_window_seqlens": starts, "max_window_seqlen": _longest(starts)}
    if side:
        weighed = get_vision_interpolation_indices_and_weights(
            grids, side, align_corners=True, spatial_merge_size=merge
        )
        known |= zip(("interp_indices", "interp_weights"), weighed, strict=True)
    return {name: value if isinstance(value, int) else value.to(device) for name, value in known.items()}


def _longest(starts: torch.Tensor) -> int:
    """Longest sequence. A tower that is not given it waits for all work of the device to read it."""
    return int(starts.diff().max())


def attend(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Full attention within each sequence: `cu_seq_lens_q` are their boundaries, `max_length_q` the longest one's length.

    query, key, value [1, heads, t, d] -> [1, t, heads, d].
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    starts = cu_seq_lens_q.int()
    attended = varlen_attn(q, k, v, starts, starts, max_length_q, max_length_q, scale=scaling)
    assert isinstance(attended, torch.Tensor), "nothing else is asked for"
    return attended[None], None


def choose_attention(modules: Iterable[torch.nn.Module], dtype: torch.dtype) -> None:
    """Use `attend` in the vision towers of `modules` where its kernel can: on a GPU, in bfloat16, with head sizes divisible by 8.

    It is set after construction: a tower that is constructed with such a name would require the package flash-attn.
    """
    for module in modules:
        tower = getattr(module, "visual", None)
        if tower is None:
            continue
        width = tower.config.hidden_size // tower.config.num_heads
        if torch.cuda.is_available() and dtype is torch.bfloat16 and not width % 8:
            AttentionInterface.register(AT_ONCE, attend)
            tower.config._attn_implementation = AT_ONCE
