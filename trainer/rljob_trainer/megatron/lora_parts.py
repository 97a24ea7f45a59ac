"""Adapters for the parts of a matrix that megatron-core fuses (query, key and value, or gate and up), each with an A of its own, as in the peft
library; and adapters to start from, a directory of that library, loaded in any layout.

megatron-bridge 0.6.2 builds such adapters (CanonicalLoRA), but its layers fail when a part has none, and interleave the heads of all ranks. The
layer here replaces them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.peft.adapter_wrapper import AdapterWrapper
from megatron.bridge.peft.canonical_lora import (
    CanonicalLoRA,
    LoRALinearSplitFC1UpGate,
    LoRALinearSplitQKV,
    ModuleDict,
)
from megatron.bridge.peft.lora_layers import LoRALinear
from safetensors import safe_open
from torch import nn

from rljob_api.rules.engine import Violation
from rljob_api.rules.lora import CONFIG, FIELD, LORA_A, LORA_B, WEIGHTS, given_violations, modules_of, parts_of
from rljob_api.spec.model import LoraSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.model_files import absent

PARTS = ("adapter_q", "adapter_k", "adapter_v"), ("adapter_gate", "adapter_up")
"""The parts of the two fused matrices by megatron-bridge's names, in the order of the rows."""


PARTS_OF_FUSED = {"qkv_proj": PARTS[0], "gate_up_proj": PARTS[1]}
"""[transformers' name of a matrix that some model files have fused as well] -> its parts."""
PREFIX = "base_model.model."
"""peft's prefix of transformers' tensor names."""


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
        parts = [change(part, adapter) if adapter is not None else part for part, adapter in pairs]
        return interleaved(parts, self._groups, 0)


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


class GivenAdapters:
    """The adapters of `spec.model.lora.path`. Each rank reads only what it needs, one tensor at a time."""

    def __init__(self, lora: LoraSpec, config: dict[str, Any], tasks: Sequence[Any]) -> None:
        """`config`: the model's config.json. `tasks`: the bridge's conversion tasks of all matrices.

        Raises ConfigurationError when the directory does not contain the adapters that the spec describes.
        """
        self._targets, self._model, self._directory = lora.targets or (), config, Path(str(lora.path))
        _refuse(absent(lora, str(lora.path)))
        self._file = safe_open(self._directory / WEIGHTS, framework="pt")
        held = set(self._file.keys())
        given = json.loads((self._directory / CONFIG).read_text())
        _refuse(given_violations(lora, config, given, {name.split(".")[-3] for name in held}))
        self._require(held, {f"{PREFIX}{name}{side}" for name in self._matrices(tasks) for side in (LORA_A, LORA_B)})

    def load(self, wrapped: LoRALinear | PartsLinear, task: Any) -> None:
        """Load this rank's shard of the adapters of one matrix. `task`: the bridge's conversion task of the matrix."""
        names = _names(task)
        if isinstance(wrapped, PartsLinear):
            for adapter, name in zip(wrapped.adapters, names, strict=True):
                if adapter is not None:
                    self._put(adapter, self._tensor(name, LORA_A), self._tensor(name, LORA_B))
        else:
            self._put(wrapped.adapter, self._shared(names), self._together(wrapped, names))

    def _shared(self, names: list[str]) -> torch.Tensor:
        """The A that all parts of a fused matrix share. Raises ConfigurationError when they have different ones."""
        first, *others = (self._tensor(name, LORA_A) for name in names)
        if not all(torch.equal(first, other) for other in others):
            modules = [name.split(".")[-1] for name in names]
            rule = f"the adapters of {', '.join(modules)} in {self._directory} have not the same A"
            parts = ", ".join(parts_of(modules_of(self._targets)))
            raise ConfigurationError(f"{FIELD}.targets", ", ".join(self._targets), rule, f"set [{parts}]")
        return first

    def _together(self, wrapped: LoRALinear, names: list[str]) -> torch.Tensor:
        """B of all parts in megatron-core's order of rows: interleaved by query groups, or, for gate and up, by ranks."""
        parts = [self._tensor(name, LORA_B) for name in names]
        if len(parts) == 1:
            module = names[0].split(".")[-1]
            return from_files(module, parts[0], wrapped.to_wrap.config) if module in PARTS_OF_FUSED else parts[0]
        return interleaved(parts, _groups(wrapped, len(parts)), 0)

    def _put(self, adapter: Any, a: torch.Tensor, b: torch.Tensor) -> None:
        for linear, whole in ((adapter.linear_in, a), (adapter.linear_out, b)):
            dim, group = linear.weight.partition_dim, adapter.tp_group
            part = whole.chunk(group.size(), dim=dim)[group.rank()]
            if part.shape != linear.weight.shape:
                shapes = f"{list(part.shape)} on a rank, and the model needs {list(linear.weight.shape)}"
                raise self._refused(f"an adapter has the shape {shapes}", "name adapters of spec.model.path")
            linear.weight.data.copy_(part)

    def _tensor(self, name: str, side: str) -> torch.Tensor:
        return self._file.get_tensor(f"{PREFIX}{name}{side}")

    def _matrices(self, tasks: Sequence[Any]) -> Iterator[str]:
        """transformers' names of all matrices to which the spec gives adapters."""
        modules = set(modules_of(self._targets, self._model))
        for task in tasks:
            if task.global_param_name.endswith(".weight"):
                yield from (name for name in _names(task) if name.split(".")[-1] in modules)

    def _require(self, held: set[str], wanted: set[str]) -> None:
        for names, words in ((wanted - held, "lacks"), (held - wanted, "has, and the model has no place for,")):
            if names:
                rule = f"{words} {len(names)} tensors, for example {min(names)}"
                raise self._refused(rule, "name adapters of spec.model.path, of all its layers")

    def _refused(self, rule: str, fix: str) -> ConfigurationError:
        return ConfigurationError(f"{FIELD}.path", str(self._directory), rule, fix)


def _refuse(violations: Iterable[Violation]) -> None:
    """Raises ConfigurationError for the first one."""
    for v in violations:
        raise ConfigurationError(v.field, v.value, v.rule, v.fix)


def _names(task: Any) -> list[str]:
    """transformers' modules that make up one matrix of megatron-core, in the order of its rows."""
    names = task.mapping.hf_param
    whole = [names] if isinstance(names, str) else [names[key] for key in ("q", "k", "v", "gate", "up") if key in names]
    return [name.removesuffix(".weight") for name in whole]


def _groups(wrapped: LoRALinear, parts: int) -> int:
    """Number of interleaved groups over all ranks."""
    return int(wrapped.to_wrap.config.num_query_groups if parts == 3 else wrapped.adapter.tp_group.size())
