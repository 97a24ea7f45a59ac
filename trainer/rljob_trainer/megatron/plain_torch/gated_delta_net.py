"""Gated delta nets in plain torch, for packed sequences: what megatron-core takes from flash-linear-attention, under its names.

A gated delta net (arXiv 2412.06464, equation 10) keeps a matrix S for each head, which token t decays, corrects and reads:

    S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - exp(g_t) S_{t-1}^T k_t))^T        o_t = S_t^T q_t

Tokens are worked on in chunks (section 3.3 there; arXiv 2406.06484, section 3.2): inside of a chunk by products of matrices, from one to the next
through S. A chunk may hold the end of one sequence and the beginning of others, which have nothing to do with each other.
"""

from typing import Any

import torch
import torch.nn.functional as F

CHUNK = 64
"""Tokens of a chunk."""


def l2norm(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x [..., d] of length 1, computed in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    cu_seqlens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Each channel of x [1, t, d] with the weights [d, w] of its last w tokens, none of them from before its sequence. Returns [1, t, d], and None
    for the state behind the last token."""
    places = _places(x.shape[1], cu_seqlens, x.device)
    wide, kernel = x.float(), weight.float()
    out = wide * kernel[:, -1]
    for back in range(1, kernel.shape[1]):
        earlier = F.pad(wide, (0, 0, back, 0))[:, : x.shape[1]]
        out = out + earlier * (places >= back)[None, :, None] * kernel[:, -1 - back]
    if bias is not None:
        out = out + bias
    return (F.silu(out) if activation in ("silu", "swish") else out).to(x.dtype), None


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    cu_seqlens: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """q, k [1, t, h, d], v [1, t, h, e], g (logarithm of the decay), beta [1, t, h] -> o [1, t, h, e], and None for the last state. In float32."""
    length = q.shape[1]
    starts = _places(length, cu_seqlens, q.device) == 0
    sequence = F.pad(starts.cumsum(0), (0, -length % CHUNK)).view(-1, CHUNK)  # padding belongs to none
    queries, keys, values, decays, rates = (_chunks(x) for x in (q * q.shape[-1] ** -0.5, k, v, g, beta))
    out = _rule(queries, keys, values, decays.cumsum(-1), rates, sequence)
    return out.flatten(1, 2)[:, :length].transpose(0, 1)[None].to(v.dtype), None


def _rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, sequence: torch.Tensor
) -> torch.Tensor:
    """q, k [h, n, c, d], v [h, n, c, e], g (summed up in a chunk), beta [h, n, c], sequence [n, c] -> o [h, n, c, e]."""
    same = (sequence[:, :, None] == sequence[:, None, :]).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~same, float("-inf")).exp()
    before = F.pad(sequence[:-1, -1], (1, 0), value=-1)
    continues = sequence == before[:, None]
    from_before = g.masked_fill(~continues, float("-inf")).exp()[..., None]
    last = sequence == sequence[:, -1:]
    to_after = (g[..., -1:] - g).masked_fill(~last, float("-inf")).exp()[..., None]
    kept = g[..., -1].masked_fill(~continues[:, -1], float("-inf")).exp()[..., None, None]

    identity = torch.eye(q.shape[2], device=q.device)
    corrections = identity + ((k * beta[..., None]) @ k.transpose(-1, -2) * decay).tril(-1)
    right = torch.cat([v * beta[..., None], k * beta[..., None] * from_before], -1)
    written, read = torch.linalg.solve_triangular(corrections, right, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], -1
    )
    scores = q @ k.transpose(-1, -2) * decay

    state, out = q.new_zeros(q.shape[0], k.shape[-1], v.shape[-1]), []
    for n in range(q.shape[1]):
        new = written[:, n] - read[:, n] @ state
        out.append(q[:, n] * from_before[:, n] @ state + scores[:, n] @ new)
        state = state * kept[:, n] + (k[:, n] * to_after[:, n]).transpose(-1, -2) @ new
    return torch.stack(out, 1)


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """[1, t, h, ...] -> [h, n, c, ...] in float32, padded with zeros."""
    rows = x[0].float().transpose(0, 1)
    padding = [0, 0] * (rows.dim() - 2) + [0, -rows.shape[1] % CHUNK]
    return F.pad(rows, padding).unflatten(1, (-1, CHUNK))


def _places(length: int, cu_seqlens: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """[t], the place of each token in its sequence."""
    tokens = torch.arange(length, device=device)
    if cu_seqlens is None:
        return tokens
    starts = cu_seqlens[:-1].long()
    return tokens - starts[torch.searchsorted(starts, tokens, right=True) - 1]
