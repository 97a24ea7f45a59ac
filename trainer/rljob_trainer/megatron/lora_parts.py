"""Adapters for the parts of a matrix that megatron-core fuses (query, key and value, or gate and up), each with an A of its own, as in the peft
library.

megatron-bridge 0.6.2 builds such adapters (CanonicalLoRA), but its layers fail when a part has none, and interleave the heads of all ranks. The layer
here replaces them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.bridge.peft.adapter_wrapper import AdapterWrapper
from megatron.bridge.peft.canonical_lora import (
    CanonicalLoRA,
    LoRALinearSplitFC1UpGate,
    LoRALinearSplitQKV,
    ModuleDict,
)
from torch import nn

from rljob_api.rules.lora import LORA_B

PARTS = ("adapter_q", "adapter_k", "adapter_v"), ("adapter_gate", "adapter_up")
"""The parts of the two fused matrices by megatron-bridge's names, in the order of the rows."""


PARTS_OF_FUSED = {"qkv_proj": PARTS[0], "gate_up_proj": PARTS[1]}
"""[transformers' name of a matrix that some model files have fused as well] -> its parts."""


class LoRAOfParts(CanonicalLoRA):
    """CanonicalLoRA with PartsLinear as its layer."""

    def transform(self, m: nn.Module, name: str | None = None, prefix: str | None = None) -> nn.Module:
        made = super().transform(m, name, prefix)
        split = isinstance(made, LoRALinearSplitQKV | LoRALinearSplitFC1UpGate)
        return PartsLinear(made.to_wrap, made.adapter) if split else made


class PartsLinear(AdapterWrapper):
    """A fused matrix with adapters for some of its parts."""

    def __init__(self, to_wrap: Any, adapters: ModuleDict) -> None:
        present = {name: adapter for name, adapter in adapters.items() if adapter is not None}
        super().__init__(to_wrap, ModuleDict(present))
        for name, adapter in present.items():
            adapter.base_linear_name = name  # under linear_fc1 a checkpoint would split it into gate and up
        self._names = next(names for names in PARTS if set(present) <= set(names))
        ranks = next(iter(present.values())).tp_group.size()
        self._groups, self._widths = _shape(self._names, to_wrap.config, to_wrap.weight.shape[0], ranks)

    @property
    def adapters(self) -> list[Any]:
        """One for each part, in the order of the matrix's rows; None for a part without adapter."""
        present = dict(self.adapter.items())
        return [present.get(name) for name in self._names]

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, bias, inputs = self.base_linear_forward(x, *args, **kwargs)
        if not self._adapter_enabled:
            return output, bias
        added = [
            adapter(inputs) if adapter is not None else output.new_zeros(*output.shape[:-1], self._groups * width)
            for adapter, width in zip(self.adapters, self._widths, strict=True)
        ]
        return output + interleaved(added, self._groups, -1), bias

    def changed(self, weight: torch.Tensor, change: Callable[[torch.Tensor, Any], torch.Tensor]) -> torch.Tensor:
        """The matrix with the rows of each part replaced by `change(rows, adapter)`, for parts that have an adapter."""
        pairs = zip(apart(weight, self._groups, self._widths), self.adapters, strict=True)
        found = [change(part, adapter) if adapter is not None else part for part, adapter in pairs]
        return interleaved(found, self._groups, 0)


def interleaved(parts: Sequence[torch.Tensor], groups: int, dim: int) -> torch.Tensor:
    """Concatenate parts along `dim` group by group: the first group of each part, then the second of each, as megatron-core stores them. Query, key
    and value have num_query_groups groups; gate and up have one group per rank."""
    at = dim % parts[0].ndim
    return torch.cat([part.unflatten(at, (groups, -1)) for part in parts], at + 1).flatten(at, at + 1)


def apart(whole: torch.Tensor, groups: int, widths: Sequence[int]) -> list[torch.Tensor]:
    """The inverse of `interleaved` along dimension 0."""
    return [part.flatten(0, 1) for part in whole.unflatten(0, (groups, -1)).split(list(widths), 1)]


def as_in_files(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """An adapter tensor as model files have it. `tensor`: as megatron-bridge exports it. In files, B of a fused matrix is the concatenation of its
    parts."""
    module = name.split(".")[-3]
    if module not in PARTS_OF_FUSED or not name.endswith(LORA_B):
        return tensor
    return torch.cat(apart(tensor, *fused_shape(module, config, len(tensor))))


def from_files(module: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """The inverse of `as_in_files` for B: the order of rows in megatron-core."""
    groups, widths = fused_shape(module, config, len(tensor))
    return interleaved(tensor.split([groups * width for width in widths]), groups, 0)


def fused_shape(module: str, config: Any, rows: int) -> tuple[int, list[int]]:
    """Number of groups over all ranks, and the rows of each part in one group."""
    if module == "gate_up_proj":
        ranks = config.tensor_model_parallel_size
        return ranks, [rows // 2 // ranks] * 2
    return _shape(PARTS_OF_FUSED[module], config, rows, 1)


def _shape(names: tuple[str, ...], config: Any, rows: int, ranks: int) -> tuple[int, list[int]]:
    """Number of groups in one rank's shard, and the rows of each part in one group."""
    if names == PARTS[1]:
        return 1, [rows // 2, rows // 2]
    queries = config.num_attention_heads // config.num_query_groups * config.kv_channels
    return config.num_query_groups // ranks, [queries, config.kv_channels, config.kv_channels]
