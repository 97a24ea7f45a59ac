"""The tensors of a trained model under their Hugging Face names."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.core.transformer.module import MegatronModule

_VOCABULARY_WEIGHTS = ("embedding.word_embeddings.weight", "output_layer.weight")


class Exporter:
    """Of the `modules` of every rank, by the bridge that read them."""

    def __init__(self, bridge: AutoBridge, modules: Sequence[MegatronModule], config: Any, but: str = ""):
        """`but`: a parameter of megatron's that is left out."""
        self._bridge, self._modules, self._config, self._but = bridge, list(modules), config, but

    def tensors(self, change: Callable[[Any], Any] = lambda task: task) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors in the model's dtype, one at a time, on every rank. Collective: every rank must drain it.

        `change` gives what is done in a task's place when its turn comes.
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
        """Hugging Face names of the tensors with a row per token, when tensor parallelism made us add rows."""
        if not self._config.should_pad_vocab:
            return set()
        return {str(t.mapping.hf_param) for t in self.tasks if t.global_param_name in _VOCABULARY_WEIGHTS}

    @cached_property
    def tasks(self) -> list[Any]:
        """What to make of each parameter. They keep what stages exchanged about them, so every export but the first asks nothing."""
        return [t for t in self._bridge.get_conversion_tasks(self._modules) if t.global_param_name != self._but]
