"""Adapters on CPUs: one product for all tokens of an adapter.

vLLM 0.32's functions for CPUs copy an adapter's weights for each token before they multiply: 0.43 ms for the two products of 256 tokens with
rank 16 and 128 x 128, in place of 0.07. And where a batch has tokens of the base model, whose index is -1, they give them the adapter in the last
place, which is one as soon as all places are taken. Can go when `bgmv_shrink` and `bgmv_expand` of torch do neither.
"""

from collections.abc import Iterator
from typing import Any

import torch

from rljob_trainer.patches import Patch
from rljob_trainer.server.compat import VERSIONS
from rljob_trainer.server.compat.cpu_engine import on_cpu

BASE = -1
"""The index of tokens without an adapter."""


def shrink(
    inputs: torch.Tensor, weights: torch.Tensor, output: torch.Tensor, indices: torch.Tensor, scaling: float = 1.0
) -> None:
    """`inputs`: [t, width]; `weights`: [adapter, (1,) rank, width]; `output`: [t, rank or more], which is set; `indices`: [t]."""
    for index, rows in _adapters(indices):
        if index == BASE:
            output[rows] = 0
        else:
            product = _product(inputs, rows, weights[index], output.dtype)
            output[rows, : product.shape[1]] = scaling * product


def expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    indices: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    """As `expand_slice`, into the first columns, of which the output may have fewer than the adapter."""
    size = min(weights.shape[-2], output.shape[1])
    expand_slice(inputs, weights, output, indices, 0, size, add_inputs)


def expand_slice(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    indices: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """`inputs`: [t, rank]; `weights`: [adapter, (1,) out, rank]; `output`: [t, columns], whose slice is set or added to."""
    columns = output[:, slice_offset : slice_offset + slice_size]
    for index, rows in _adapters(indices):
        if index != BASE:
            product = _product(inputs, rows, weights[index], output.dtype)[:, :slice_size]
            columns[rows] = columns[rows] + product if add_inputs else product


def _adapters(indices: torch.Tensor) -> Iterator[tuple[int, torch.Tensor | slice]]:
    """Those of a batch, with the rows of each."""
    if len(indices) and (indices == indices[0]).all():
        yield int(indices[0]), slice(None)
        return
    for index in indices.unique().tolist():
        yield index, (indices == index).nonzero()[:, 0]


def _product(
    inputs: torch.Tensor, rows: torch.Tensor | slice, weights: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """[rows, out], of `weights`: [(1,) out, width]."""
    return inputs[rows].to(dtype) @ weights.reshape(weights.shape[-2:]).to(dtype).T


def multiply_once() -> None:
    """Replace them where vLLM's functions for prefill and for decoding look for them."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    modules: tuple[Any, ...] = (lora_ops, punica_cpu)
    for module in modules:
        module.bgmv_shrink, module.bgmv_expand, module.bgmv_expand_slice = shrink, expand, expand_slice


PATCHES = (
    Patch(
        "products with adapters on CPU",
        "vllm",
        VERSIONS,
        apply=multiply_once,
        needed=on_cpu,
        replaces={
            "vllm/lora/ops/torch_ops/lora_ops.py:bgmv_shrink": "21df21758d87f863",
            "vllm/lora/ops/torch_ops/lora_ops.py:bgmv_expand": "a70952edf6419ef0",
            "vllm/lora/ops/torch_ops/lora_ops.py:bgmv_expand_slice": "8b74068c5ec5b2f6",
        },
    ),
)
