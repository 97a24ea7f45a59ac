"""The tensors of a trained model under their Hugging Face names: whole on every rank, or each on the rank that owns it."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.core import parallel_state as mpu
from megatron.core.transformer.module import MegatronModule

from rljob_trainer.megatron.ownership import Ownership, exported_once
from rljob_trainer.wire.weights.plan import GatherPhase

_VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output_layer.weight")


def _as_it_is(task: Any) -> Any:
    return task


class Exporter:
    """Exports the model that is sharded over the `modules` of all ranks, with the bridge that loaded it."""

    def __init__(self, bridge: AutoBridge, modules: Sequence[MegatronModule], config: Any, but: str = ""):
        """`but`: a megatron parameter that is not exported."""
        self._bridge, self._modules, self._config, self._but = bridge, list(modules), config, but

    def prepare(self) -> None:
        """Look up how parameters are converted. Must be called before modules are wrapped, whose parameters have other names. Collective."""
        _ = self.tasks, self._own_tasks

    def tensors(self, change: Callable[[Any], Any] = _as_it_is) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields unsharded tensors in the model's dtype, on every rank. Collective: every rank must exhaust the iterator.

        `change` may replace each conversion task of the bridge just before it runs, for example by one of merged weights.
        """
        return self._converted(self.tasks, change)

    def owned(self, change: Callable[[Any], Any] = _as_it_is, own: Ownership | None = None) -> list[GatherPhase]:
        """Like `tensors`, but each tensor on its owner only: nothing leaves its pipeline stage. The first call is collective over all ranks.

        First what all ranks of the stage share: the first rank of the exported copy owns it, and the tensor ranks of that copy take part. So do the
        expert ranks in what the model's files have of all experts in one tensor. Then the experts: the first rank of each expert group owns its own.
        Whoever owns something of the second part has nothing to do for others then (see Phase). `own`: this rank's part; None: that of an export
        of the first copy.
        """
        own = own or exported_once()
        mine = [t for t in self._own_tasks if (own.gathers_experts if t.mapping.is_expert else own.gathers)]
        shared, experts = [t for t in mine if not _of_one_expert(t)], [t for t in mine if _of_one_expert(t)]
        return [
            GatherPhase(self._converted(tasks, change), owns, sum(map(self._size, tasks)) if owns else 0)
            for tasks, owns in ((shared, own.owns), (experts, own.owns_experts))
        ]

    def _converted(self, tasks: Sequence[Any], change: Callable[[Any], Any]) -> Iterator[tuple[str, torch.Tensor]]:
        padded = self._padded_names()
        exported = self._bridge.export_hf_weights(
            self._modules,
            cpu=False,
            show_progress=False,
            conversion_tasks=map(change, tasks),
            merge_adapter_weights=False,
        )
        for name, tensor in exported:
            yield name, tensor[: self._config.vocab_size] if name in padded else tensor

    def _padded_names(self) -> set[str]:
        """Hugging Face names of tensors with padded vocabulary rows; empty unless tensor parallelism made padding necessary."""
        if not self._config.should_pad_vocab:
            return set()
        return {str(t.mapping.hf_param) for t in self.tasks if t.global_param_name in _VOCABULARY_WEIGHTS}

    @cached_property
    def tasks(self) -> list[Any]:
        """The bridge's conversion tasks. They cache what pipeline stages exchange about them, so only the first export communicates that."""
        return [t for t in self._bridge.get_conversion_tasks(self._modules) if t.global_param_name != self._but]

    @cached_property
    def _own_tasks(self) -> list[Any]:
        """Conversion tasks of this rank's parameters. They ask no other stage, and no other expert ranks for single experts."""
        own = [t for t in self._bridge.get_conversion_tasks(self._modules) if t.megatron_module is not None]
        if (
            mpu.get_pipeline_model_parallel_rank()
        ):  # a copy, for the layer for multi-token prediction behind the last stage
            own = [t for t in own if t.global_param_name != _VOCABULARY_WEIGHTS[0]]
        for task in own:
            groups = {"pp": _ALONE} | ({"ep": _ALONE} if _of_one_expert(task) else {})
            task.mapping.set_process_groups_from_pg_collection(SimpleNamespace(**groups))
        return [t for t in own if t.global_param_name != self._but]

    def _size(self, task: Any) -> int:
        """Bytes of the tensors that a task makes."""
        weight, mapping = task.param_weight, task.mapping
        shards = mapping.tp_size if getattr(weight, "tensor_model_parallel", False) else 1
        if mapping.is_expert and not _of_one_expert(task):
            shards *= mapping.ep_size
        rows = weight.shape[0] * shards if weight.dim() else 1
        if task.global_param_name in _VOCABULARY_WEIGHTS:
            rows = min(rows, self._config.vocab_size)
        return int(rows * weight[0].numel() * weight.element_size() if weight.dim() else weight.nbytes)


class _Alone:
    """Stands for a process group of this rank only, of which the bridge asks no more."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


_ALONE = _Alone()


def _of_one_expert(task: Any) -> bool:
    """Whether the model's files have tensors of this expert alone."""
    return bool(task.mapping.is_expert) and not getattr(task.mapping, "is_grouped_export", False)
