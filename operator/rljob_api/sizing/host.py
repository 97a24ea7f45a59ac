"""An estimate of what the trainer keeps in the memory of its hosts: what left the GPUs for a while, and the copy that a checkpoint is written from.

Not counted: what processes hold in any case (imports, buffers of libraries, pages of files), and weights that wait for a colocated server.
"""

from dataclasses import dataclass

from rljob_api import names, quantity
from rljob_api.sizing.layout import Layout
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import FLOAT, Network, own_parameters, stages
from rljob_api.spec import RLJobSpec


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of a trainer pod, the one that holds most."""

    offloaded: float
    """Parameters and moments of models that take turns on the GPUs. Gradients are not kept."""
    reference: float
    """The model that changes places with the policy."""
    checkpoint: float
    """The copy of what learns that is written while training continues."""

    @property
    def total(self) -> float:
        return self.offloaded + self.reference + self.checkpoint


def host_memory(spec: RLJobSpec, shape: Shape) -> HostMemory:
    ranks, copies = spec.trainer.processes_per_node, Layout.of(spec, names.ROLE_TRAINER).data
    found = stages(spec, shape)
    width = BYTES[spec.model.dtype] / FLOAT / copies  # of what learns, which has gradients in float32
    written = max(sum(width * n.gradients + n.optimizer for n in s.networks) for s in found)
    return HostMemory(
        offloaded=ranks * max(sum(map(_offloaded, s.networks)) for s in found),
        reference=ranks * _reference(spec, shape),
        checkpoint=ranks * written if spec.checkpoint.every_steps else 0.0,
    )


def memory_limit(spec: RLJobSpec) -> float:
    """Bytes that a trainer pod may use; 0: nobody has said. Raises ValueError for what is no quantity."""
    limits = spec.trainer.template.resources.limits
    return quantity.parse(limits["memory"]) / 1000 if "memory" in limits else 0.0


def _offloaded(network: Network) -> float:
    moves = network.offload
    return moves.parameters * network.parameters + moves.optimizer * network.optimizer


def _reference(spec: RLJobSpec, shape: Shape) -> float:
    """A rank's. With adapters the reference is the frozen model itself, if no other is named."""
    elsewhere = names.ROLE_REFERENCE in spec.gangs or not spec.reference.offload
    if not spec.has_reference or elsewhere or (spec.model.lora and not spec.reference.path):
        return 0.0
    lay = Layout.of(spec, names.ROLE_TRAINER)
    tower = shape.tower.parameters() if shape.tower else 0
    return BYTES[spec.model.dtype] * max(sum(own_parameters(shape, lay, s)) + tower for s in (0, lay.pipeline - 1))
