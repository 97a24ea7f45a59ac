"""An estimate of what the trainer keeps in host memory: what is offloaded from the GPUs, and copies that checkpoints are written from.

A checkpoint of any layout, the last one or a drained job's, is gathered: every rank holds the moments and float32 copies of all that its stage learns
(megatron/compat/optimizer_gathering.py in the trainer). One that is written while training continues is a copy of the rank's own shards only, whose
memory is given back before the last one.

Not counted: what processes hold in any case (imports, buffers of libraries, pages of files), and weights that wait for a colocated server.
"""

from dataclasses import dataclass

from rljob_api import names, quantity
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import FLOAT, Network, Stage, own_parameters, stages
from rljob_api.spec import RLJobSpec


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of host memory in the trainer pod that holds most."""

    offloaded: float
    """Parameters and moments of models that take turns on the GPUs. Gradients are not kept."""
    reference: float
    """The model that changes places with the policy."""
    checkpoint: float
    """What the largest checkpoint is written from."""

    @property
    def total(self) -> float:
        return self.offloaded + self.reference + self.checkpoint


def host_memory(spec: RLJobSpec, shape: Shape) -> HostMemory:
    ranks, found = spec.trainer.processes_per_node, stages(spec, shape)
    return HostMemory(
        offloaded=ranks * max(sum(map(_offloaded, s.networks)) for s in found),
        reference=ranks * _reference(spec, shape),
        checkpoint=ranks * max(_written(spec, s) for s in found),
    )


def _written(spec: RLJobSpec, stage: Stage) -> float:
    """Bytes that one rank writes a checkpoint from. One copy of the model writes the weights."""
    trained = [n for n in stage.networks if n.gradients]
    weights = sum(n.gradients for n in trained) * BYTES[spec.model.dtype] / FLOAT
    gathered = sum(3 * n.gradients for n in trained)
    return weights / Layout.of(spec, names.ROLE_TRAINER).data + gathered


def memory_limit(spec: RLJobSpec) -> float:
    """Bytes of memory that a trainer pod may use; 0: it has no limit. Raises ValueError for what is no quantity."""
    limits = spec.trainer.template.resources.limits
    return quantity.parse(limits["memory"]) / 1000 if "memory" in limits else 0.0


def _offloaded(network: Network) -> float:
    moves = network.offload
    return moves.parameters * network.parameters + moves.optimizer * network.optimizer


def _reference(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of an offloaded reference, per rank. With adapters the reference is the frozen model itself, unless another is named."""
    elsewhere = names.ROLE_REFERENCE in spec.gangs or not spec.reference.offload
    if not spec.has_reference or elsewhere or (spec.model.lora and not spec.reference.path):
        return 0.0
    lay = Layout.of(spec, names.ROLE_TRAINER)
    tower = shape.tower.parameters() if shape.tower else 0
    return BYTES[spec.model.dtype] * max(sum(own_parameters(shape, lay, s)) + tower for s in (0, lay.pipeline - 1))
