"""vLLM's kernels on CPU. What a server has to do for the same results for every batch is in server/compat/exact_on_cpu.py."""

from itertools import pairwise

import torch
import torch.nn.functional as F
import vllm._custom_ops as ops
from vllm.ir.ops.layernorm import rms_norm as normalised
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

from rljob_trainer.megatron.exact import functions

current_platform.import_kernels()

PRIMITIVES = 32
"""That oneDNN keeps of a matrix, as vLLM says it."""
PAGE = 128
"""Tokens of a page of keys and values, as of a server by default."""

rotate = functions.rotated


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [t, in], weight [out, in] -> [t, out]. oneDNN multiplies a single row in another order than several, so a row is never alone."""
    rows = x.contiguous() if len(x) > 1 else x.expand(2, -1).contiguous()
    return ops.onednn_mm(ops.create_onednn_mm(weight.t(), PRIMITIVES), rows, bias)[: len(x)]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, of_sum: bool) -> torch.Tensor:
    """x [..., d]. `of_sum`: x is a sum with the residual stream, which a server adds in the same kernel."""
    return normalised.impls["native"].impl_fn(x, weight, eps)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 d], gate and value -> [..., d]"""
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: tuple[int, ...], scale: float
) -> torch.Tensor:
    """query [t, heads, d], key and value [t, groups, d] of sequences with these boundaries -> [t, heads, d].

    Every token is a request of its own: the kernel takes keys in other portions where a request has several queries.
    """
    lengths = [end - start for start, end in pairwise(starts)]
    pages = [-(-n // PAGE) for n in lengths]
    groups, width = key.shape[1:]
    isa = _get_attn_isa(query.dtype, PAGE, width)
    cache = torch.zeros(sum(pages), groups, PAGE * 2, width, dtype=query.dtype)
    keys, values = cache.chunk(2, dim=2)
    slots, table, seen = _places(lengths, pages)
    ops.cpu_attn_reshape_and_cache(key.contiguous(), value.contiguous(), keys, values, slots, isa)
    rows = torch.arange(len(query) + 1, dtype=torch.int32)
    shape = (len(query), query.shape[1], groups, width, seen, query.dtype, rows)
    plan = ops.cpu_attn_get_scheduler_metadata(*shape, True, -1, isa, False)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    ops.cpu_attention_with_kv_cache(
        query=query.contiguous(),
        key_cache=keys,
        value_cache=values,
        output=out,
        query_start_loc=rows,
        seq_lens=seen,
        scale=scale,
        causal=True,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=table,
        softcap=0,
        scheduler_metadata=plan,
        s_aux=None,
    )
    return out


def _places(lengths: list[int], pages: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each token its slot in the cache [t], the pages of its sequence [t, most pages], and how many tokens it sees [t]."""
    slots, table, seen, first = [], torch.zeros(sum(lengths), max(pages), dtype=torch.int32), [], 0
    row = 0
    for n, count in zip(lengths, pages, strict=True):
        slots.append(torch.arange(first * PAGE, first * PAGE + n))
        table[row : row + n, :count] = torch.arange(first, first + count)
        seen.append(torch.arange(1, n + 1, dtype=torch.int32))
        first, row = first + count, row + n
    return torch.cat(slots), table, torch.cat(seen)


def log_probs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """logits [t, vocabulary], tokens [t] -> float32 [t]"""
    scaled = logits.float() / torch.tensor(temperature)
    return scaled.log_softmax(-1, dtype=torch.float32).gather(1, tokens[:, None])[:, 0]
