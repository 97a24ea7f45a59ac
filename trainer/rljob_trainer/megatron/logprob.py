"""Log-probabilities and entropy of a vocabulary that is cut over tensor-parallel ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

CHUNK = 2048
"""Rows per piece: bounds the float32 copies at CHUNK x local vocabulary, whatever the length of the micro-batch."""


def log_probs_and_entropy(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, vocabulary: int, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax(logits / temperature) at `targets` [t], and the entropy [t] of that distribution, both float32.

    `logits` [t, v] is this rank's share of the padded vocabulary, in rank order; padding (token ids from `vocabulary` on) has probability 0.
    Both results are differentiable and equal on all ranks of `group`. The backward pass computes the softmax again instead of keeping it.
    """
    return _VocabularyParallel.apply(logits, targets, temperature, vocabulary, group)


class _VocabularyParallel(torch.autograd.Function):
    """With z = logits / T, p = softmax(z), H = -sum p log p:  d log p_y / dz = 1_y - p;  dH / dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        vocabulary: int,
        group: dist.ProcessGroup,
    ) -> Any:
        width = logits.shape[-1]
        first = group.rank() * width
        local = targets - first
        ctx.real, ctx.temperature = max(0, min(width, vocabulary - first)), temperature
        ctx.here = (local >= 0) & (local < width)
        ctx.local = local.clamp(0, width - 1)
        top = _rows(logits, lambda rows: _scaled(logits[rows], ctx).amax(-1))
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        sums = _rows(
            logits,
            lambda rows: _local_sums(_scaled(logits[rows], ctx) - top[rows, None], ctx.local[rows], ctx.here[rows]),
        )
        dist.all_reduce(sums, group=group)
        total, weighted, target = sums.unbind(-1)
        log_total = total.log()
        entropy = log_total - weighted / total
        ctx.save_for_backward(logits, top + log_total, entropy)
        return target - log_total, entropy

    @staticmethod
    def backward(ctx: Any, grad_log_prob: torch.Tensor, grad_entropy: torch.Tensor) -> Any:
        logits, log_normaliser, entropy = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for rows in _pieces(len(logits)):
            log_p = _scaled(logits[rows], ctx) - log_normaliser[rows, None]
            p = log_p.exp()
            g = (
                -p * grad_log_prob[rows, None]
                - p * (log_p.clamp(min=torch.finfo(p.dtype).min) + entropy[rows, None]) * grad_entropy[rows, None]
            )
            g.scatter_add_(1, ctx.local[rows, None], (grad_log_prob[rows] * ctx.here[rows])[:, None])
            grad[rows] = g / ctx.temperature
        return grad, None, None, None, None


def _scaled(logits: torch.Tensor, ctx: Any) -> torch.Tensor:
    """float32 logits over the temperature, padding at minus infinity."""
    z = logits.float() / ctx.temperature
    z[:, ctx.real :] = float("-inf")
    return z


def _local_sums(z: torch.Tensor, local: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
    """[n, v] -> [n, 3]: sum exp(z), sum z exp(z), and z at the target where this rank has it."""
    e = z.exp()
    weighted = e * z.clamp(min=torch.finfo(z.dtype).min)
    return torch.stack([e.sum(-1), weighted.sum(-1), z.gather(1, local[:, None])[:, 0].where(here, 0.0)], -1)


def _pieces(rows: int) -> Iterator[slice]:
    return (slice(i, i + CHUNK) for i in range(0, rows, CHUNK))


def _rows(logits: torch.Tensor, function: Callable[[slice], torch.Tensor]) -> torch.Tensor:
    return torch.cat([function(rows) for rows in _pieces(len(logits))])
