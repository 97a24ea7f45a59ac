"""Which tensors of an update a worker does not need: those of other stages, and of experts that other workers have.

vLLM's own loaders say so. They are run once on tensors without memory, into a model without memory, and what they never read is not needed. So
nothing in here knows how a model is divided. vLLM 0.32's `sharded_rdt` finds out in the same way which part of each tensor a worker needs.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_trainer.server.weights.shadow import Shadow

log = logging.getLogger(__name__)

NOWHERE = torch.device("meta")
NamedTensors = Iterable[tuple[str, Tensor]]
Described = Mapping[str, tuple[Sequence[int], torch.dtype]]
"""Shape and type of tensors, by name."""


def needless(
    model: Module, config: Any, tensors: Described, given: Callable[[NamedTensors], NamedTensors] = lambda named: named
) -> set[str]:
    """Names of those of `tensors` that the loaders of vLLM's `model` never read. `config`: vLLM's ModelConfig; `given`: makes of an update what the
    loaders get. Empty if they cannot do without numbers: then all are needed."""
    empty = {name: torch.empty(tuple(shape), dtype=dtype, device=NOWHERE) for name, (shape, dtype) in tensors.items()}
    with torch.no_grad(), _Reads(empty) as reads:
        try:
            Shadow(model, config, NOWHERE, keeps=True).load(given(empty.items()))
        except Exception:
            log.exception(
                "weights: this worker receives all tensors, because vLLM's loaders do not run without numbers"
            )
            return set()
    return empty.keys() - reads.names


class _Reads(TorchDispatchMode):
    """Which tensors operators read, other than those that make views."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._by_memory = {_memory(tensor): name for name, tensor in tensors.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            flat = torch.utils._pytree.tree_leaves((args, kwargs))
            found = (self._by_memory.get(_memory(value)) for value in flat if isinstance(value, Tensor))
            self.names |= {name for name in found if name}
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
