"""DeepSeek's sparse attention (DSA) over packed sequences, in plain torch: DeepSeek-V3.2 (arXiv 2512.02556, section 2.1), GLM-5 (arXiv 2602.15763).

An indexer with narrow heads scores for the query of token t every token s up to it, and the query attends to the k tokens of the highest scores:

    I_ts = sum_h w_th relu(q_th . k_s)

In a sequence of at most k tokens that is all of them, and neither indexer nor mask is computed. In a longer one, whatever was not chosen is
masked: it takes as many operations as attention to all. megatron-core's own attention computes a score of every token for every other one of a
whole pack, in float32, unless cuDNN's or TileLang's kernels are there.

In GLM-5.2 most layers have no indexer, and take the choice of the last one before them that has (arXiv 2603.12201).

The indexer does not learn. Its choice has no gradient, so the policy's loss gives it none; DeepSeek trains it before RL with a loss of its own, and
GLM-5's authors freeze it in RL, since it became unstable there (their section on RL).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.checkpoint import checkpoint

from rljob_api.indexers import FULL, SHARED
from rljob_trainer.megatron import context_parallel
from rljob_trainer.megatron.plain_torch.attention import TEDotProductAttention
from rljob_trainer.megatron.plain_torch.pieces import PaddedPieces, padded_pieces, picked

AT_ONCE = 2**25
"""Scores that are computed at once: 128 MiB in float32."""


KNOWN = "rljob_chosen"
"""On what describes a pack: the choices of layers that share theirs, by the layer's number, until the backward pass of that layer. A layer that is
computed again finds its own there."""


class Index(NamedTuple):
    """What the indexer says of a rank's tokens."""

    queries: torch.Tensor
    """[t, heads, d]"""
    weights: torch.Tensor
    """[t, heads]"""
    keys: torch.Tensor
    """[t, d], of the tokens of all context-parallel ranks."""


class SparseAttention(TEDotProductAttention):
    """Causal attention over packed sequences to the `dsa_indexer_topk` tokens that the indexer scores highest."""

    requires_dsa_inputs = True
    """megatron-core passes the layer's input, and the vectors that queries are made of."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: Any,
        layer_number: int,
        *args: Any,
        pg_collection: ProcessGroupCollection,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, layer_number, *args, pg_collection=pg_collection, **kwargs)
        self.most = config.dsa_indexer_topk
        kinds = config.indexer_types[:layer_number]
        self.source = len(kinds) - kinds[::-1].index(FULL)
        """The number of the layer whose choice this one takes: its own, or that of an earlier one."""
        self.shares = SHARED in config.indexer_types
        self.indexer = None
        if self.source == layer_number:
            self.indexer = build_module(submodules.indexer, config=config, pg_collection=pg_collection)
            self.indexer.requires_grad_(False)

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        packed_seq_params: Any,
        x: torch.Tensor,
        qr: torch.Tensor,
        **__: Any,
    ) -> torch.Tensor:
        """query, key [t, heads, d], value [t, heads, e] of this rank's CP partition -> [t, heads * e]. x [s, 1, hidden], qr [s, rank]: with sequence
        parallelism of this rank's share."""
        padded = F.pad(value, (0, query.shape[-1] - value.shape[-1]))
        if packed_seq_params.max_seqlen_q <= self.most:
            out = super().forward(query, key, padded, packed_seq_params=packed_seq_params)
        else:
            chosen = self._chosen(query, x, qr, packed_seq_params)
            out = self._attend_to_some(query, key, padded, packed_seq_params, chosen)
        return out.unflatten(-1, (-1, query.shape[-1]))[..., : value.shape[-1]].flatten(-2)

    def _chosen(self, query: torch.Tensor, x: torch.Tensor, qr: torch.Tensor, packed_seq_params: Any) -> "Chosen":
        """Of this layer, or of the one whose choice it takes, in the same pass."""
        if not self.shares:
            return self._choose(x, qr, packed_seq_params)
        known: dict[int, Chosen] = vars(packed_seq_params).setdefault(KNOWN, {})
        if self.indexer is not None:
            if self.source not in known:
                known[self.source] = self._choose(x, qr, packed_seq_params)
            self._forget_after_backward(query, known)
        return known[self.source]

    def _forget_after_backward(self, query: torch.Tensor, known: dict[int, "Chosen"]) -> None:
        """Layers that take this one's choice come after it, so that their backward passes are over before its own."""

        def forget(_: torch.Tensor) -> None:
            known.pop(self.source, None)

        if query.requires_grad:
            query.register_hook(forget)

    @torch.no_grad()
    def _choose(self, x: torch.Tensor, qr: torch.Tensor, packed_seq_params: Any) -> "Chosen":
        batches, _ = self._batches(packed_seq_params, x.device)
        index = self._index(x, qr, packed_seq_params)
        return [choices(b, index, self.most) if b.keys.shape[1] > self.most else [] for b in batches]

    def _index(self, x: torch.Tensor, qr: torch.Tensor, packed_seq_params: Any) -> Index:
        assert self.indexer is not None
        queries, keys, weights = (
            part.squeeze(1) for part in self.indexer.forward_before_topk(x, qr, packed_seq_params)
        )
        if self.groups.cp.size() > 1:
            keys = gather_from_sequence_parallel_region(keys, group=self.groups.cp)
        return Index(queries, weights, keys)

    def _batches(self, packed_seq_params: Any, device: torch.device) -> tuple[list[PaddedPieces], torch.Tensor]:
        starts = context_parallel.boundaries(packed_seq_params.cu_seqlens_q)
        return padded_pieces(starts, self.groups.cp.size(), self.groups.cp.rank(), device)

    def _attend_to_some(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed_seq_params: Any, chosen: "Chosen"
    ) -> torch.Tensor:
        if self.groups.cp.size() > 1:
            both = gather_from_sequence_parallel_region(torch.stack([key, value], 1), group=self.groups.cp)
            key, value = both.unbind(1)
        batches, place = self._batches(packed_seq_params, query.device)
        parts = [
            attend_to_chosen(b, (query, key, value), some, self.scale) if some else self._attend(b, query, key, value)
            for b, some in zip(batches, chosen, strict=True)
        ]
        return torch.cat(parts).index_select(0, place)


class Choice(NamedTuple):
    """For some queries of a padded batch of pieces."""

    queries: slice
    end: int
    """Of the keys that they may attend to."""
    tokens: torch.Tensor
    """[n, c, k] numbers of the chosen keys"""
    last: torch.Tensor
    """[n, c] number of the last key that each may attend to, of which fewer may be there than are chosen"""


Chosen = list[list[Choice]]
"""By padded batch of a pack; empty where all tokens are attended to."""


def choices(pieces: PaddedPieces, index: Index, most: int, at_once: int = AT_ONCE) -> list[Choice]:
    """Of all queries. `at_once`: scores."""
    queries, weights = picked(index.queries, pieces.queries), picked(index.weights, pieces.queries)
    keys, own = picked(index.keys, pieces.keys), pieces.last
    (n, width), count = pieces.queries.shape, pieces.keys.shape[1]
    step, chosen = max(1, at_once // (n * count)), []
    for first in range(0, width, step):
        at = slice(first, min(first + step, width))
        last, end = own[:, at], at.stop if pieces.first is None else count
        scores = index_scores(queries[:, at], weights[:, at], keys[:, :end])
        later = torch.arange(end, device=last.device) > last[..., None]
        best = scores.masked_fill_(later, float("-inf")).topk(min(most, end), -1).indices
        chosen.append(Choice(at, end, best.int(), last))
    return chosen


def attend_to_chosen(
    pieces: PaddedPieces, tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor], chosen: list[Choice], scale: float
) -> torch.Tensor:
    """Of a pack's queries, keys and values [t, heads, d] those of the pieces -> [n * w, heads * d]. Masks are made again for the backward pass from
    the numbers of the chosen tokens, which are smaller."""
    rows = (pieces.queries, pieces.keys, pieces.keys)
    q, k, v = (picked(x, of).transpose(1, 2) for x, of in zip(tokens, rows, strict=True))
    parts = [
        checkpoint(
            _attend_to,
            q[:, :, c.queries],
            k[:, :, : c.end],
            v[:, :, : c.end],
            c.tokens,
            c.last,
            scale,
            use_reentrant=False,
        )
        for c in chosen
    ]
    return torch.cat(parts, 2).transpose(1, 2).flatten(0, 1).flatten(1)


def index_scores(queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """I_ts of queries [n, w, h, d], weights [n, w, h] and keys [n, k, d]: [n, w, k] in float32. One head after the other, since all together are h
    times as large."""
    scores = torch.zeros(*weights.shape[:2], keys.shape[1], device=keys.device)
    across = keys.float().transpose(1, 2)
    for head in range(weights.shape[2]):
        scores += F.relu(queries[:, :, head].float() @ across) * weights[:, :, head, None].float()
    return scores


def _attend_to(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: torch.Tensor, last: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [n, heads, c, d] to those of k, v [n, heads, k, d] whose numbers `chosen` [n, c, m] has, and that are not behind `last` [n, c]."""
    mask = torch.zeros(*last.shape, k.shape[2], dtype=torch.bool, device=k.device).scatter_(-1, chosen.long(), True)
    mask &= torch.arange(k.shape[2], device=k.device) <= last[..., None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], scale=scale)
