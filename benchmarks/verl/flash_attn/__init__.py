"""Stand-in for flash-attn, which PyPI has as source only: its functions by the FlashAttention-2 kernels inside torch, with gradients.

transformers, with which verl trains, takes packed sequences only by this package's names. It passes dropout and windows to functions that have
such parameters; these have none, because Qwen2 needs none.
"""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__version__ = "2.8.3"
flash_attn_with_kvcache = None
"""Imported by transformers, never called in training."""


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    longest = int(max_seqlen_q)
    # A tensor's value is read once, since the GPU waits for it
    longest_keys = longest if max_seqlen_k is max_seqlen_q else int(max_seqlen_k)
    window = (-1, 0 if causal else -1)
    out = varlen_attn(
        q, k, v, cu_seqlens_q, cu_seqlens_k, longest, longest_keys, scale=softmax_scale, window_size=window
    )
    assert isinstance(out, Tensor)
    return out


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """Of a micro-batch that is one sequence."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)
