"""Loads adapters to start from, a directory of the peft library, into megatron-bridge's layers, in any layout."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.bridge.peft.lora_layers import LoRALinear
from safetensors import safe_open

from rljob_api.rules.engine import Violation
from rljob_api.rules.lora import CONFIG, FIELD, LORA_A, LORA_B, WEIGHTS, given_violations, modules_of, parts_of
from rljob_api.spec.model import LoraSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.megatron.lora_parts import PARTS_OF_FUSED, PartsLinear, from_files, interleaved
from rljob_trainer.preflight import absent

PREFIX = "base_model.model."
"""peft's prefix of transformers' tensor names."""


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
