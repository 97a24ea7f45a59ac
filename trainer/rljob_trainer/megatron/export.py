"""The tensors of a trained model under their Hugging Face names."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.core.transformer.module import MegatronModule

_VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output_layer.weight")


class Exporter:
    """Exports the model that is sharded over the `modules` of all ranks, with the bridge that loaded it."""

    def __init__(self, bridge: AutoBridge, modules: Sequence[MegatronModule], config: Any, but: str = ""):
        """`but`: a megatron parameter that is not exported."""
        self._bridge, self._modules, self._config, self._but = bridge, list(modules), config, but

    def tensors(self, change: Callable[[Any], Any] = lambda task: task) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields unsharded tensors in the model's dtype, on every rank. Collective: every rank must exhaust the iterator.

        `change` may replace each conversion task of the bridge just before it runs, for example by one of merged weights.
        """
        padded = self._padded_names()
        exported = self._bridge.export_hf_weights(
            self._modules,
            cpu=False,
            show_progress=False,
            conversion_tasks=map(change, self.tasks),
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
