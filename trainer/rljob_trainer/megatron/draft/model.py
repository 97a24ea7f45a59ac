"""The network of an EAGLE-3 draft (arXiv 2503.01840) in plain torch, as vLLM 0.32 computes it (model_executor/models/llama_eagle3.py).

Parameters have the names of its files. Every rank has all of it: it is one layer of a model of many.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ROWS = 512
"""Tokens whose attention is computed at a time. It is computed again in the backward pass, so that memory does not grow with the square of a
sample's length."""


class Draft(nn.Module):
    """Guesses from three of the policy's hidden states at a token, and the embedding of the next, the token after that."""

    def __init__(self, config: Any, seen: int) -> None:
        """`config`: transformers' LlamaConfig of the draft's files; `seen`: hidden states that it reads."""
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(seen * width, width, bias=False)
        self.midlayer = Layer(config)
        self.norm = nn.RMSNorm(width, eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)

    def unrolled(
        self, seen: Tensor, following: Tensor, positions: Tensor, bounds: Sequence[tuple[int, int]], steps: int
    ) -> Iterator[Tensor]:
        """Yields of each guess in turn what the head reads, [t, hidden]: row i of number k is of the token k + 2 places after token i, where the k
        tokens between were guessed, so that the draft's own hidden state stands for the policy's ("training-time test").

        Args:
            seen: [t, hidden states x hidden], of the policy
            following: [t, hidden], the embedding of the token after each
            positions: [t]
            bounds: first row and row behind the last of each sample. Attention does not leave a sample; rows whose token after next is beyond its end
                are meaningless, and nothing else depends on them
        """
        hidden, attention = self.fc(seen), Unrolled(bounds)
        for step in range(steps):
            hidden = self.midlayer(following.roll(-step, 0), hidden, positions + step, attention)
            yield self.norm(hidden)


class Layer(nn.Module):
    """A decoder layer whose attention reads embedding and hidden state side by side."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.mlp = Mlp(width, config.intermediate_size)

    def forward(self, following: Tensor, hidden: Tensor, positions: Tensor, attention: "Unrolled") -> Tensor:
        joined = torch.cat((self.input_layernorm(following), self.hidden_norm(hidden)), -1)
        hidden = hidden + self.self_attn(joined, positions, attention)
        grown: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return grown


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return made


class Attention(nn.Module):
    """Grouped queries with rotated positions."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, self._size = config.hidden_size, config.head_dim
        self._groups, self._base = config.num_key_value_heads, config.rope_parameters["rope_theta"]
        wide, narrow = config.num_attention_heads * self._size, self._groups * self._size
        self.q_proj = nn.Linear(2 * width, wide, bias=False)
        self.k_proj = nn.Linear(2 * width, narrow, bias=False)
        self.v_proj = nn.Linear(2 * width, narrow, bias=False)
        self.o_proj = nn.Linear(wide, width, bias=False)

    def forward(self, joined: Tensor, positions: Tensor, attention: "Unrolled") -> Tensor:
        t = len(joined)
        queries = rotated(self.q_proj(joined).view(t, -1, self._size), positions, self._base)
        keys = rotated(self.k_proj(joined).view(t, -1, self._size), positions, self._base)
        values = self.v_proj(joined).view(t, -1, self._size)
        found = attention(queries.unflatten(1, (self._groups, -1)), keys, values)
        made: Tensor = self.o_proj(found.flatten(1))
        return made


def rotated(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """[t, heads, d] with its two halves rotated by the token's position (arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    rates = base ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = (positions[:, None].float() * rates)[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class Unrolled:
    """Attention of guess after guess: each row sees the rows before it as the first guess read them, and of later ones its own row only, since each
    row is the end of a response of its own."""

    def __init__(self, bounds: Sequence[tuple[int, int]]) -> None:
        self._blocks = [(start, at, min(at + ROWS, end)) for start, end in bounds for at in range(start, end, ROWS)]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`queries`: [t, groups, heads of a group, d]; `keys`, `values`: [t, groups, d]. Returns what `queries` has."""
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat([self._block(queries, *block) for block in self._blocks])

    def _block(self, queries: Tensor, start: int, at: int, end: int) -> Tensor:
        own = [torch.stack([x[at:end] for x in kept]) for kept in (self._keys, self._values)]
        before = [kept[0][start:end] for kept in (self._keys, self._values)]
        found: Tensor = checkpoint(attended, queries[at:end], *before, *own, use_reentrant=False)
        return found


def attended(queries: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor) -> Tensor:
    """Softmax attention of r rows, the last of c, to the first guess of the rows up to each, and to its own later guesses.

    `queries`: [r, n, g, d]; `keys`, `values`: [c, n, d]; of own guesses [1 + m, r, n, d], the first of which `keys` has as well.
    """
    (r, *_, size), c = queries.shape, len(keys)
    seen = torch.einsum("rngd,cnd->rngc", queries, keys)
    later = torch.ones(r, c, dtype=torch.bool, device=keys.device).triu(c - r + 1)
    seen = seen.masked_fill(later[:, None, None], float("-inf"))
    scores = torch.cat((seen, torch.einsum("rngd,mrnd->rngm", queries, own_keys[1:])), -1)
    shares = (scores.float() / size**0.5).softmax(-1).to(values.dtype)
    found = torch.einsum("rngc,cnd->rngd", shares[..., :c], values)
    return found + torch.einsum("rngm,mrnd->rngd", shares[..., c:], own_values[1:])
