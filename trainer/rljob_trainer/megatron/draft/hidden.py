"""What a draft reads of the policy as it is trained: hidden states, embeddings, and logits. None of it carries a gradient."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from torch import Tensor

from rljob_trainer.megatron.parallel_state import ParallelState


class HiddenStates:
    """The inputs of some of a model's layers, in its last forward pass."""

    def __init__(self, module: Any, layers: Sequence[int]) -> None:
        """`module`: megatron-core's GPTModel with all layers; `layers`: counted from 0, the number of all: what the last one gives."""
        self._layers, self._listens = layers, False
        self._found: dict[int, Tensor] = {}
        self._shared = module.config.sequence_parallel
        for layer in layers:
            decoder = module.decoder
            read = decoder.layers[layer] if layer < len(decoder.layers) else decoder.final_layernorm
            read.register_forward_pre_hook(self._hook(layer), with_kwargs=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context in which passes are noted."""
        self._listens = True
        try:
            yield
        finally:
            self._listens = False
            self._found.clear()

    def taken(self) -> Tensor:
        """[t, layers x hidden], of the last pass, the same on all tensor-parallel ranks."""
        found = [self._found.pop(layer) for layer in self._layers]
        whole = map(gather_from_sequence_parallel_region, found) if self._shared else found
        return torch.cat([x.squeeze(1) for x in whole], -1)

    def _hook(self, layer: int) -> Any:
        def note(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._listens:
                self._found[layer] = (given[0] if given else named["hidden_states"]).detach()

        return note


def embedded(module: Any, tokens: Tensor, parallel: ParallelState) -> Tensor:
    """[t, hidden], of tokens [t], by an embedding whose vocabulary is divided among the tensor-parallel ranks."""
    weight = module.embedding.word_embeddings.weight.detach()
    here, places = _own(tokens, len(weight), parallel)
    found = weight[places] * here[:, None]
    dist.all_reduce(found, group=parallel.tensor_group)
    return found


def chosen_logits(logits: Tensor, tokens: Tensor, vocabulary: int, parallel: ParallelState) -> tuple[Tensor, Tensor]:
    """Of logits [u, local vocabulary], padded behind `vocabulary`: those of `tokens` [n], [u, n] float32, and the largest of all, [u]."""
    width = logits.shape[-1]
    here, places = _own(tokens, width, parallel)
    found = logits[:, places].float() * here
    real = max(0, min(width, vocabulary - parallel.tensor_group.rank() * width))
    largest = logits[:, :real].float().amax(-1) if real else found.new_full((len(found),), float("-inf"))
    dist.all_reduce(found, group=parallel.tensor_group)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=parallel.tensor_group)
    return found, largest


def _own(tokens: Tensor, width: int, parallel: ParallelState) -> tuple[Tensor, Tensor]:
    """Which tokens this rank has, and their places in its share of the vocabulary; 0 of others."""
    places = tokens - parallel.tensor_group.rank() * width
    here = (places >= 0) & (places < width)
    return here, places * here
