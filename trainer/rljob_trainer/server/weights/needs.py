"""What a worker needs of an update: not the layers of other stages, nor experts that other workers have, and of matrices that tensor-parallel workers
divide its own slice.

vLLM's own loaders say so. They are run once on tensors without memory, into a model without memory, and what they never read is not needed. So
nothing in here knows how a model is divided. vLLM 0.32's `sharded_rdt` finds it out in the same way.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from rljob_trainer.server.weights.partial_tensor import NOWHERE, PartialTensor, Region
from rljob_trainer.server.weights.shadow import Shadow
from rljob_trainer.wire.weights.slices import NOTHING, Slice, covering

log = logging.getLogger(__name__)

NamedTensors = Iterable[tuple[str, Tensor]]
Described = Mapping[str, tuple[Sequence[int], torch.dtype]]
"""Shape and type of tensors, by name."""


def _as_they_are(named: NamedTensors) -> NamedTensors:
    return named


def needs(
    model: Module, config: Any, tensors: Described, given: Callable[[NamedTensors], NamedTensors] = _as_they_are
) -> dict[str, Slice]:
    """By name, what the loaders of vLLM's `model` read of those of `tensors` of which they do not read all. `config`: vLLM's ModelConfig; `given`:
    makes of an update what the loaders get. Empty if they cannot do without numbers: then all are needed."""
    reads: dict[str, list[Region]] = {name: [] for name in tensors}
    empty = ((name, _empty(name, shape, dtype, reads[name])) for name, (shape, dtype) in tensors.items())
    with torch.no_grad():
        try:
            Shadow(model, config, NOWHERE, keeps=True).load(given(empty))
        except Exception:
            log.exception(
                "weights: this worker receives all tensors, because vLLM's loaders do not run without numbers"
            )
            return {}
    slices = {name: covering(shape, reads[name]) for name, (shape, _) in tensors.items()}
    needed = {name: part for name, part in slices.items() if part is not None}
    none = sum(part == NOTHING for part in needed.values())
    log.info(
        "weights: of %d tensors this worker receives %d whole, %d in slices, and %d not at all",
        *(len(tensors), len(tensors) - len(needed), len(needed) - none, none),
    )
    return needed


def _empty(name: str, shape: Sequence[int], dtype: torch.dtype, reads: list[Region]) -> Tensor:
    """A tensor without memory that notes what is read of it."""
    size = shape[0] if shape else 1
    there = torch.empty(tuple(shape) or (1,), dtype=dtype, device=NOWHERE)
    made = PartialTensor.of(name, tuple(shape) or (1,), Slice(0, ((0, size),)), there, reads.append)
    return made if shape else made[0]
