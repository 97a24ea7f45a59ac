"""Off and on with the padding, by the names and parameters of flash-attn's module."""

import torch
from einops import rearrange
from torch import Tensor

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(rows: Tensor, indices: Tensor) -> Tensor:
    return rows[indices]


def unpad_input(hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The rows that the mask keeps, their places in the flattened batch, the bounds of the sequences, the longest, all lengths."""
    kept = attention_mask.bool()
    places = torch.arange(kept.numel(), device=kept.device)[kept.flatten()]
    lengths = kept.sum(1, dtype=torch.int32)
    bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=kept.device)
    bounds[1:] = lengths.cumsum(0)
    return hidden_states.flatten(0, 1)[places], places, bounds, int(lengths.max()), lengths


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    empty = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return empty.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
