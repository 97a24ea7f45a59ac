"""Logits of the tokens in the loss, and of no others.

A token's logits are as wide as the vocabulary, and most tokens may need none: those of prompts, of environments and of padding. Their hidden states
are left out before the output layer, which then computes, keeps and sends back less. Every number that is left is the same up to the rounding of
sums: matrices of another height are multiplied in other blocks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region


def takes_some_tokens(config: Any) -> bool:
    """Whether a model's output layer can be given some tokens only. In FP8 it takes multiples of 32, and where the gradient of its weight is
    postponed it counts on the sequence-parallel shares of all tokens."""
    return not (config.fp8_output_proj or config.defer_embedding_wgrad_compute)


def logits_at(rows: torch.Tensor) -> Callable[..., torch.Tensor]:
    """What megatron-core's GPTModel calls in place of its output layer (`output_processor`): [1, u, local vocabulary], the logits of the tokens
    `rows` [u] of this rank's micro-batch, the same on all tensor-parallel ranks."""
    return partial(_logits, rows)


def _logits(
    rows: torch.Tensor,
    *,
    hidden_states: torch.Tensor,
    output_layer: Any,
    output_weight: Any,
    scale_logits: Any,
    **_: Any,
) -> torch.Tensor:
    """`hidden_states`: [t, 1, hidden]; with sequence parallelism a share of it, in which there may be none of the tokens, or all."""
    if output_layer.sequence_parallel:
        hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
    with _gathered(output_layer):
        logits, _ = output_layer(hidden_states.index_select(0, rows), weight=output_weight)
    whole: torch.Tensor = scale_logits(logits).transpose(0, 1).contiguous()
    return whole


@contextmanager
def _gathered(layer: Any) -> Iterator[None]:
    """A context in which the layer takes rows that all tensor-parallel ranks have, and adds up their gradient over these ranks."""
    parallel, added = layer.sequence_parallel, layer.allreduce_dgrad
    layer.sequence_parallel, layer.allreduce_dgrad = False, added or parallel
    try:
        yield
    finally:
        layer.sequence_parallel, layer.allreduce_dgrad = parallel, added
