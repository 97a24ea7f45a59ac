"""Attention and rotary embedding of packed sequences in plain torch, also where context-parallel ranks share the sequences."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint
from torch.nn import Parameter
from torch.nn.attention.varlen import varlen_attn

from rljob_trainer.megatron import context_parallel
from rljob_trainer.megatron.plain_torch.pieces import PaddedPieces, padded_pieces, picked

FLASH_TYPES = (torch.bfloat16, torch.float16)
"""Types that torch's flash attention for packed sequences (varlen_attn) takes, on a GPU."""


class TEDotProductAttention(MegatronModule):
    """Causal attention over packed sequences, with grouped queries. Every pass of the trainer is packed, so other layouts are not supported.

    A context-parallel rank has its zig-zag partition of the queries and gathers the keys and values of all ranks. In a layer with a sliding window a
    query attends to itself and at most `window` keys before it. With attention sinks every head has a learnt logit for attending to nothing
    (gpt-oss).
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        *_: Any,
        pg_collection: ProcessGroupCollection,
        softmax_scale: float | None = None,
        **__: Any,
    ) -> None:
        super().__init__(config=config)
        self.groups = pg_collection
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        slides = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window: int | None = config.window_size[0] if slides else None
        if config.softmax_type == "learnable":
            heads = config.num_attention_heads // pg_collection.tp.size()
            self.softmax_offset = Parameter(
                torch.zeros(heads, dtype=config.params_dtype, device=torch.cuda.current_device())
            )
            set_tensor_model_parallel_attributes(self.softmax_offset, True, 0, 1)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Any, **__: Any
    ) -> torch.Tensor:
        """query [t, heads, d], key and value [t, groups, d] of this rank's CP partition -> [t, heads * d].

        `packed_seq_params.cu_seqlens_q` are the boundaries of whole sequences, over all context-parallel ranks.
        """
        ranks, rank = self.groups.cp.size(), self.groups.cp.rank()
        if ranks == 1 and query.is_cuda and query.dtype in FLASH_TYPES and self.sinks is None:
            starts, longest = packed_seq_params.cu_seqlens_q, packed_seq_params.max_seqlen_q
            window = (-1 if self.window is None else self.window, 0)
            out = varlen_attn(
                query,
                key,
                value,
                starts,
                starts,
                longest,
                longest,
                scale=self.scale,
                window_size=window,
                enable_gqa=True,
            )
            return cast(torch.Tensor, out).flatten(1)  # it returns a pair only when asked for the log-sum-exp
        starts = context_parallel.boundaries(packed_seq_params.cu_seqlens_q)
        if ranks > 1:
            both = gather_from_sequence_parallel_region(torch.stack([key, value], 1), group=self.groups.cp)
            key, value = both.unbind(1)
        batches, place = padded_pieces(starts, ranks, rank, query.device)
        return torch.cat([self._attend(b, query, key, value) for b in batches]).index_select(0, place)

    @property
    def sinks(self) -> torch.Tensor | None:
        """[heads] of this rank: the logit of each head's attention sink; None for models without."""
        return getattr(self, "softmax_offset", None)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        tensors = self.state_dict(prefix="", keep_vars=True)
        groups = {"tp_group": self.groups.tp, "dp_cp_group": (metadata or {}).get("dp_cp_group")}
        return make_sharded_tensors_for_checkpoint(tensors, prefix, {"softmax_offset": 0}, sharded_offsets, **groups)

    def _attend(
        self, pieces: PaddedPieces, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """[n * w, heads * d]"""
        q, k, v = (
            picked(x, rows).transpose(1, 2)
            for x, rows in ((query, pieces.queries), (key, pieces.keys), (value, pieces.keys))
        )
        mask = pieces.mask(self.window)
        if self.sinks is not None:
            return _attend_with_sinks(q, k, v, mask, self.sinks, self.scale).transpose(1, 2).flatten(0, 1).flatten(1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(0, 1).flatten(1)


def _attend_with_sinks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [n, heads, w, d], k and v [n, groups, k, d] -> [n, heads, w, d]. Written out because SDPA computes no gradient of a mask, which sinks
    need."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) * scale
    seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril() if mask is None else mask
    nothing = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores.masked_fill(~seen, -math.inf), nothing], -1).float().softmax(-1)
    return weights[..., :-1].to(v.dtype) @ v


def rotate_packed(
    t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor, cp_group: Any, **kwargs: Any
) -> torch.Tensor:
    """Rotary embedding of packed tokens [t, heads, d]. `freqs`: angles of the positions of the longest sequence, or, for multimodal RoPE, of each
    token.

    megatron's own goes sequence by sequence (rope_utils.py), which takes half of a step's time when there are hundreds of short ones.
    """
    angles = freqs
    if cp_group.size() > 1 or len(freqs) != len(t):
        starts = context_parallel.boundaries(cu_seqlens)
        angles = freqs.index_select(0, context_parallel.positions(starts, cp_group.size(), cp_group.rank(), t.device))
    return rope_utils._apply_rotary_pos_emb_bshd(t.unsqueeze(1), angles, **kwargs).squeeze(1)
