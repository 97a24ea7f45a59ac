"""An estimate of what the pods of the trainer hold in host memory.

What is offloaded from the GPUs or updated on the host, and copies that checkpoints are written from: of moments and float32 weights
those that a rank has (megatron/compat/core_checkpoints.py in the trainer), and its share of the weights, which data-parallel ranks write together;
what is updated on the host is copied only where training continues meanwhile; weights and moments of a draft are copied by the first rank. What
processes hold in any case (imports, buffers of libraries) is counted where servers are colocated, as it was measured, and not elsewhere. Not counted:
pages of files.
"""

from dataclasses import dataclass

from rljob_api import names
from rljob_api.sizing.layout import Layout, servers_per_pod
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import FLOAT, Stage, own_parameters, saved_draft, shares, stages
from rljob_api.spec import RLJobSpec

PROCESSES = 6.5 * 2**30
"""Bytes for each GPU that the processes of a rank and of a colocated server hold besides: eleven jobs on one to four GPUs, within 1.3 GiB."""
FURTHER_SERVER = PROCESSES / 2
"""Bytes that each further server on the same GPU holds: half of what a rank and a server do, not measured."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of host memory in the trainer pod that holds most."""

    offloaded: float
    """Parameters and moments of models that take turns on the GPUs, moments that are updated on the host, and gradients of a service's clients, which
    accumulate them. Other gradients are not kept."""
    reference: float
    """The model that changes places with the policy."""
    checkpoint: float
    """What the largest checkpoint is written from."""
    processes: float = 0.0
    """Of ranks and colocated servers."""

    @property
    def total(self) -> float:
        return self.offloaded + self.reference + self.checkpoint + self.processes


def host_memory(spec: RLJobSpec, shape: Shape) -> HostMemory:
    ranks, every = spec.trainer.processes_per_node, stages(spec, shape)
    served = servers_per_pod(spec) > 0 and spec.trainer.device == "gpu"
    of_gpu = PROCESSES + (spec.rollout.servers_per_gpu - 1) * FURTHER_SERVER
    return HostMemory(
        offloaded=ranks * max(sum(n.on_host for n in s.networks) + _clients(spec, s) for s in every),
        reference=ranks * _reference(spec, shape),
        checkpoint=0.0 if spec.evaluation.only else _of_checkpoint(spec, shape, every),
        processes=ranks * of_gpu if served else 0.0,
    )


def _clients(spec: RLJobSpec, stage: Stage) -> float:
    """Bytes of the models of a service's clients, per rank: each lies on the host while another one's is in the adapters."""
    if spec.task != "service" or not spec.adapters:
        return 0.0
    adapters = stage.networks[0]
    weights = adapters.gradients / FLOAT * BYTES[spec.model.dtype]
    return spec.service.max_models * (weights + adapters.gradients + adapters.optimizer)


def _of_checkpoint(spec: RLJobSpec, shape: Shape, every: list[Stage]) -> float:
    """Bytes that all ranks of a pod copy for one."""
    of_ranks = spec.trainer.processes_per_node * max(_written(spec, stage) for stage in every)
    return of_ranks + saved_draft(spec, shape)


def _written(spec: RLJobSpec, stage: Stage) -> float:
    """Bytes that one rank copies for a checkpoint, but for a draft. In float32, where a weight is its own float32 copy, the optimizer's part of it is
    written too."""
    trained = [n for n in stage.networks if n.gradients and not n.whole]
    lay = Layout.of(spec, names.ROLE_TRAINER)
    width = BYTES[spec.model.dtype]
    weights = sum(n.gradients for n in trained) * width / FLOAT
    on_device = sum(n.optimizer for n in trained if not n.offload.update) * (3 / 2 if width == FLOAT else 1)
    alongside = spec.checkpoint.asynchronous and spec.checkpoint.every_steps > 0
    states = on_device + alongside * sum(n.updated for n in trained)
    return weights / (lay.data * lay.context) + states


def _reference(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of an offloaded reference, per rank. With adapters the reference is the frozen model itself, unless another is named."""
    here = names.ROLE_REFERENCE in spec.shared and spec.reference.offload
    if not here or (spec.model.lora and not spec.reference.path):
        return 0.0
    lay = Layout.of(spec, names.ROLE_TRAINER)
    tower = shape.tower.parameters() if shape.tower else 0
    return BYTES[spec.model.dtype] * max(sum(own_parameters(shape, lay, s)) + tower for s in shares(spec, shape))
