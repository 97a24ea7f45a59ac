"""Attention of a vision tower on GPUs: all pictures of a micro-batch, or all windows of them, in one kernel.

The towers are those of transformers, whose attention in torch goes through the pictures one after the other (Qwen2_5_VLVisionAttention in
models/qwen2_5_vl/modeling_qwen2_5_vl.py): Qwen2.5-VL has 16 windows in a picture of 448 x 448, and the GPU waits for their many small kernels.
Attention functions are an extension point of transformers (`AttentionInterface.register`); a name with `flash` in it is given all sequences at once.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

AT_ONCE = "rljob_flash"
"""The name of `attend`."""


def attend(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value [1, heads, t, d]; sequences lie between consecutive `cu_seq_lens_q` and see all of themselves. Returns [1, t, heads, d]."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    starts, longest = cu_seq_lens_q.int(), int(max_length_q)
    found = varlen_attn(q, k, v, starts, starts, longest, longest, scale=scaling)
    assert isinstance(found, torch.Tensor), "nothing else is asked for"
    return found[None], None


def choose_attention(modules: Iterable[torch.nn.Module], dtype: torch.dtype) -> None:
    """For their towers, if they have any. The kernel takes 16 bits, and heads whose width 8 divides.

    A tower that is made with such a name would look for the package flash-attn.
    """
    for tower in (found for m in modules if (found := getattr(m, "visual", None)) is not None):
        width = tower.config.hidden_size // tower.config.num_heads
        if torch.cuda.is_available() and dtype is torch.bfloat16 and not width % 8:
            AttentionInterface.register(AT_ONCE, attend)
            tower.config._attn_implementation = AT_ONCE
