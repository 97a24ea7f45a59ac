"""Log-probabilities and entropy over a vocabulary that is sharded over tensor-parallel ranks."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from rljob_trainer.algorithm.tokens import Predictions
from rljob_trainer.machine import triton_kernels

KERNELS = "rljob_trainer.megatron.logprob_kernels"
CHUNK = 2048
"""Tokens per piece. Bounds the size of float32 copies to CHUNK x local vocabulary."""


def predictions(
    logits: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    vocabulary: int,
    group: dist.ProcessGroup,
    candidates: torch.Tensor | None = None,
) -> Predictions:
    """log softmax(logits / temperature) at `targets` [t], at `candidates` [t, K] and averaged over the vocabulary, and the entropy.

    `logits` [t, v] is this rank's shard of the padded vocabulary, in rank order; padding (token ids from `vocabulary` on) has probability 0. The
    results are the same on all ranks of `group`. The backward pass recomputes the softmax and overwrites the logits with their gradient, so nothing
    else may use them afterwards.
    """
    further = targets.new_empty(len(targets), 0) if candidates is None else candidates
    return Predictions(*_VocabularyParallel.apply(logits, targets, further, temperature, vocabulary, group))


class _VocabularyParallel(torch.autograd.Function):
    """With z = logits / T over a vocabulary of V, p = softmax(z), H = -sum p log p, m = mean log p:
    d log p_y / dz = 1_y - p;  dH / dz = -p (log p + H);  dm / dz = 1 / V - p."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        candidates: torch.Tensor,
        temperature: float,
        vocabulary: int,
        group: dist.ProcessGroup,
    ) -> Any:
        width = logits.shape[-1]
        first = group.rank() * width
        ctx.real, ctx.scale = max(0, min(width, vocabulary - first)), 1.0 / temperature
        wanted = torch.cat((targets[:, None], candidates), -1)
        here = (wanted >= first) & (wanted < first + ctx.real)
        ctx.local = torch.where(here, wanted - first, -1)
        ctx.vocabulary = vocabulary
        own_top, total, weighted, target, plain = _partial_sums(
            logits, ctx.local[:, 0].contiguous(), ctx.scale, ctx.real
        ).unbind(-1)
        top = own_top.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        shift = (own_top - top).clamp(min=torch.finfo(top.dtype).min)  # minus infinity where a share is all padding
        sums = torch.stack([total, weighted + shift * total, target - top * here[:, 0], plain], -1)
        sums[:, :2] *= shift.exp()[:, None]
        dist.all_reduce(sums, group=group)
        total, weighted, target, plain = sums.unbind(-1)
        log_total = total.log()
        normaliser, entropy = top + log_total, log_total - weighted / total
        ctx.save_for_backward(logits, normaliser, entropy)
        correct = (target >= 0).float()
        ctx.mark_non_differentiable(correct)
        further = _chosen(logits, ctx.local[:, 1:], ctx.scale)
        if further.shape[-1]:
            dist.all_reduce(further, group=group)
        return target - log_total, entropy, plain / vocabulary - normaliser, correct, further - normaliser[:, None]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        logits, normaliser, entropy = ctx.saved_tensors
        slopes = torch.cat((torch.stack(gradients[:3]), gradients[4].T))
        _gradient_in_place(logits, ctx.local, normaliser, entropy, slopes, ctx.scale, ctx.real, ctx.vocabulary)
        return logits, None, None, None, None, None


def _partial_sums(logits: torch.Tensor, local: torch.Tensor, scale: float, real: int) -> torch.Tensor:
    """See logprob_kernels.partial_sums."""
    kernels = triton_kernels(KERNELS, logits.is_cuda)
    if kernels:
        return kernels.partial_sums(logits, local, scale, real)

    def of(rows: slice) -> torch.Tensor:
        z = _scaled(logits[rows], scale, real)
        top = z.amax(-1)
        below = (z - top[:, None]).nan_to_num(nan=float("-inf"))  # all padding: the difference of two infinities
        e = below.exp()
        weighted = (e * below.clamp(min=torch.finfo(z.dtype).min)).sum(-1)
        target = z.gather(1, local[rows, None].clamp(min=0))[:, 0].where(local[rows] >= 0, 0.0)
        return torch.stack([top, e.sum(-1), weighted, target, z[:, :real].sum(-1)], -1)

    return _rows(logits, of)


def _chosen(logits: torch.Tensor, local: torch.Tensor, scale: float) -> torch.Tensor:
    """[t, K], scaled logits in float32 at `local` [t, K], 0 where that is -1."""
    return logits.gather(1, local.clamp(min=0)).float().mul(scale).where(local >= 0, 0.0)


def _gradient_in_place(
    logits: torch.Tensor,
    local: torch.Tensor,
    normaliser: torch.Tensor,
    entropy: torch.Tensor,
    slopes: torch.Tensor,
    scale: float,
    real: int,
    vocabulary: int,
) -> None:
    """See logprob_kernels.gradient_in_place. `local`: [t, 1 + K], with a slope of each candidate [K, t] behind the three; the kernel takes none."""
    kernels = triton_kernels(KERNELS, logits.is_cuda) if local.shape[-1] == 1 else None
    if kernels:
        kernels.gradient_in_place(
            logits, local[:, 0].contiguous(), normaliser, entropy, slopes, scale, real, vocabulary
        )
        return
    _, of_entropy, of_mean = slopes[:3, :, None]
    of_tokens = torch.cat((slopes[:1], slopes[3:])).T
    of_all = of_tokens.sum(-1, keepdim=True) + of_mean
    for rows in _pieces(len(logits)):
        log_p = _scaled(logits[rows], scale, real) - normaliser[rows, None]
        p = log_p.exp()
        g = -p * of_all[rows] - p * (log_p.clamp(min=torch.finfo(p.dtype).min) + entropy[rows, None]) * of_entropy[rows]
        g[:, :real] += of_mean[rows] / vocabulary
        g.scatter_add_(1, local[rows].clamp(min=0), of_tokens[rows] * (local[rows] >= 0))
        logits[rows] = g * scale


def _scaled(logits: torch.Tensor, scale: float, real: int) -> torch.Tensor:
    """float32 logits over the temperature, padding at minus infinity."""
    z = logits.float() * scale
    z[:, real:] = float("-inf")
    return z


def _pieces(rows: int) -> Iterator[slice]:
    return (slice(i, i + CHUNK) for i in range(0, rows, CHUNK))


def _rows(logits: torch.Tensor, function: Callable[[slice], torch.Tensor]) -> torch.Tensor:
    return torch.cat([function(rows) for rows in _pieces(len(logits))])
