"""vLLM's kernels on GPUs: those of its batch-invariant mode (VLLM_BATCH_INVARIANT), where a server computes without torch.compile."""

from itertools import pairwise

import torch
import vllm._custom_ops as ops
from vllm.model_executor.determinism import batch_invariant
from vllm.platforms import current_platform
from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

from rljob_trainer.megatron.exact import functions

current_platform.import_kernels()
batch_invariant.resolve_tuned_matmul_configs()  # as a server does when it starts: sizes of tiles depend on them

rotate = functions.rotated


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [t, in], weight [out, in] -> [t, out]"""
    return batch_invariant.linear_batch_invariant(x.contiguous(), weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, of_sum: bool) -> torch.Tensor:
    """x [..., d]. `of_sum`: x is a sum with the residual stream, which a server adds in the same kernel. Here that adds nothing."""
    if not of_sum:
        return batch_invariant.rms_norm_batch_invariant(x, weight, eps)
    rows = x.reshape(-1, x.shape[-1]).clone()
    ops.fused_add_rms_norm(rows, torch.zeros_like(rows), weight, eps)
    return rows.view(x.shape)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [..., 2 d], gate and value -> [..., d]"""
    out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    torch.ops._C.silu_and_mul(out, x.contiguous())
    return out


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: tuple[int, ...], scale: float
) -> torch.Tensor:
    """query [t, heads, d], key and value [t, groups, d] of sequences with these boundaries -> [t, heads, d]"""
    longest = max(end - start for start, end in pairwise(starts))
    boundaries = torch.tensor(starts, dtype=torch.int32, device=query.device)
    return flash_attn_varlen_func(
        q=query.contiguous(),
        k=key.contiguous(),
        v=value.contiguous(),
        max_seqlen_q=longest,
        cu_seqlens_q=boundaries,
        max_seqlen_k=longest,
        cu_seqlens_k=boundaries,
        softmax_scale=scale,
        causal=True,
        fa_version=get_flash_attn_version(head_size=query.shape[-1]),
        num_splits=1,
    )


def log_probs(logits: torch.Tensor, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    """logits [t, vocabulary], tokens [t] -> float32 [t]"""
    scaled = logits if temperature == 1 else tempered(logits, temperature)
    return compute_token_logprobs(scaled, tokens[:, None])[:, 0]


def tempered(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """float32 [t, vocabulary], by the kernel of vLLM's sampler."""
    from vllm.v1.worker.gpu.sample.gumbel import apply_temperature

    scaled = logits.float()
    rows = torch.zeros(len(scaled), dtype=torch.int32, device=scaled.device)
    apply_temperature(scaled, rows, torch.full((1,), temperature, device=scaled.device))
    return scaled
