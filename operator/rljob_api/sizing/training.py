"""How long the passes of a step take on the ranks of a gang by a model of operations and bytes: docs/sizing.md compares it with measurements.

Operations of all passes over the GPU's rate, at a share that its kernels reach, longer by the busiest stage and by the pipeline's bubble,
(m + (p - 1)/v) / m with m micro-batches (Narayanan et al. arXiv 2104.04473 section 2.2); plus what communicators move (traffic.py) over NVLink where
their ranks share a node, and over its network cards where not, without overlap; plus what sparse attention computes besides (sparse_attention.py). On
GPUs without grouped products, in place of all of these the time in which a rank's process starts those of its experts one by one, if that is longer:
the GPU then waits for it. Plus what offload moves over PCIe, and steps of the optimizer on the host (`offload.update`).

A critic and reward models on the trainer's ranks take turns with the policy. On ranks of their own a critic learns while the policy does; what
others measure there the trainer waits for, unless batches are made ahead. Every one counts as if it were as large as the policy.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from rljob_api import names
from rljob_api.sizing.devices import Rates
from rljob_api.sizing.layout import Amounts, Layout, spec_of_gang
from rljob_api.sizing.network import Cards
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.sparse_attention import chooses, is_shared, scores
from rljob_api.sizing.stage import FLOAT, ModelBytes, operations, shares, stages
from rljob_api.sizing.traffic import TrafficBytes, forward_passes
from rljob_api.spec import RLJobSpec

KERNELS, KERNELS_OF_EXPERTS = 0.55, 0.3
"""Share of a GPU's operations that a training pass reaches: 0.51 to 0.58 measured for 1.5 B and 7 B (docs/evidence/gpus.md). With experts it is by
one measurement of Qwen3-30B-A3B with 8 layers. Megatron-Bridge has published 0.24 and 0.31 for all of it and for 235B on H100, with their
communication."""
STARTING = 0.158e-3
"""Seconds for which Transformer Engine keeps a rank's process busy with one of its grouped products: 0.137 to 0.182 by five measured steps of
Qwen3-30B-A3B with 8, 16 and 48 layers, in four leases, and 0.13 to 0.15 by a profile of one of them."""
READING = 0.8
"""Share of the rate of a GPU's memory that is reached."""
EXCHANGING = 0.45
"""Share of NVLink's rate that tensor-parallel ranks reach, with the gaps around their many small exchanges."""
PCIE = 50e9
"""Bytes per second between a GPU and host memory: 55e9 were measured into pinned memory (H200)."""
ON_HOST = 2e9
"""Parameters whose optimizer step a rank's share of the host takes in a second: 16 CPUs of an H100's host."""
NARROW_MOMENTS = 1.6
"""How much longer it takes with moments in bfloat16, on two CPUs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a job runs on."""

    rates: Rates
    memory: float
    """Bytes of a GPU."""
    cards: Cards


class PassCounts(NamedTuple):
    """Over the tokens of a step, by all models on the ranks of a gang."""

    learning: float
    """With a backward pass."""
    forward: float
    """Without."""
    cost: float
    """Of all of them, in forward passes."""


def train(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Seconds until policy and critic have learnt from a step's batch."""
    seconds = _on_ranks(spec, shape, machine, _of_trainer(spec))
    if names.ROLE_CRITIC not in spec.gangs:
        return seconds
    gang = spec_of_gang(spec, names.ROLE_CRITIC)
    return max(seconds, _on_ranks(gang, shape, machine, _learning(gang, 2)))


def measure(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Seconds that the slowest gang of another model takes for a forward pass over a step's batch, and then the critic's; 0: there is none."""
    once = PassCounts(0.0, 1.0, 1.0)
    seconds = {role: _on_ranks(spec_of_gang(spec, role), shape, machine, once) for role in spec.gangs}
    critic = seconds.pop(names.ROLE_CRITIC, 0.0)
    return max(seconds.values(), default=0.0) + critic


def _of_trainer(spec: RLJobSpec) -> PassCounts:
    """Of the policy, and of a critic and reward models on its ranks."""
    policy = _learning(spec, 1 if spec.adapters else 2)
    old = forward_passes(spec) * spec.train.epochs_per_step
    scorers = sum(reward.model is not None and not reward.model.processes_per_node for reward in spec.rewards)
    critic = PassCounts(0.0, 0.0, 0.0)
    if spec.critic and names.ROLE_CRITIC not in spec.gangs:
        critic = _learning(spec, 2)._replace(forward=1.0)
    forward = old + scorers + critic.forward
    return PassCounts(policy.learning + critic.learning, forward, policy.cost + critic.cost + forward)


def _learning(spec: RLJobSpec, backward: int) -> PassCounts:
    """Of one model. A backward pass takes as long as two forward passes; with adapters as one, since frozen matrices need no gradient."""
    epochs, again = spec.train.epochs_per_step, spec.trainer.recompute.granularity == "full"
    return PassCounts(epochs, 0.0, epochs * (1 + again + backward))


def _on_ranks(spec: RLJobSpec, shape: Shape, machine: Machine, passes: PassCounts) -> float:
    """Seconds of all passes on the trainer's ranks."""
    lay, amounts = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec)
    volumes = _volumes(spec, shape, passes)
    busiest = max(operations(spec, shape)) * passes.cost * amounts.samples_per_step / lay.data
    computing = busiest / (lay.tensor * lay.context) / _kernels(spec, shape, machine)
    computing += _within_layers(spec, machine, volumes)
    if passes.learning:
        computing += _sparse_attention(spec, shape, machine)
    micro = _micro_batches(spec)
    bubble = (micro + (lay.pipeline - 1) / lay.virtual_pipeline) / micro
    seconds = max(computing, _starting(spec, shape, machine, passes)) * bubble
    return seconds + (_between_steps(spec, shape, machine, volumes) if passes.learning else 0.0)


def _micro_batches(spec: RLJobSpec) -> int:
    """Of an optimizer step, in each copy of the model."""
    lay, amounts = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec)
    samples = max(1, spec.train.tokens_per_micro_batch // amounts.longest)
    count = max(1, math.ceil(amounts.samples_per_mini_batch / lay.data / samples))
    return -(-count // lay.micro_batch_multiple) * lay.micro_batch_multiple


def _starting(spec: RLJobSpec, shape: Shape, machine: Machine, passes: PassCounts) -> float:
    """Seconds in which a rank's process starts the products of its experts one by one, two of each in a forward pass over a micro-batch."""
    if not shape.experts or machine.rates.grouped:
        return 0.0
    own = shape.experts / Layout.of(spec, names.ROLE_TRAINER).expert
    layers = max(share.mixed for share in shares(spec, shape))
    products = 2 * layers * own * passes.cost * _micro_batches(spec) * spec.train.mini_batches
    return products * STARTING


def _kernels(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Operations of a training pass per second."""
    return rate(spec, machine) * (KERNELS_OF_EXPERTS if shape.experts else KERNELS)


def rate(spec: RLJobSpec, machine: Machine) -> float:
    """Operations of matrices per second, in the model's type."""
    return machine.rates.float32 if spec.model.dtype == "float32" else machine.rates.operations


def _sparse_attention(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Seconds of a rank for what its layers compute besides: scores in every forward pass, and attention a second time before its backward pass."""
    if not chooses(spec, shape):
        return 0.0
    lay, amounts, epochs = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec), spec.train.epochs_per_step
    again = spec.trainer.recompute.granularity == "full" and not is_shared(shape)
    computed, moved = scores(spec, shape)
    scoring = computed / machine.rates.float32 + moved / (machine.rates.memory * READING)
    attending = shape.work.square / shape.layers * amounts.longest**2 / lay.tensor / _kernels(spec, shape, machine)
    of_layer = epochs * ((1 + again + forward_passes(spec)) * scoring + attending)
    layers = max(share.layers for share in shares(spec, shape))
    return layers * of_layer * amounts.samples_per_step / (lay.data * lay.context)


def _within_layers(spec: RLJobSpec, machine: Machine, volumes: TrafficBytes) -> float:
    """Seconds that a rank waits for what its layers exchange."""
    lay = Layout.of(spec, names.ROLE_TRAINER)
    tensor = volumes.tensor / (machine.rates.neighbours * EXCHANGING)
    context = volumes.context / _rate(spec, machine, lay.tensor * lay.context)
    others = volumes.expert * (lay.expert - 1)
    expert = others / _rate(spec, machine, lay.expert * lay.expert_tensor)
    pipeline = volumes.pipeline / _rate(spec, machine, lay.world) if lay.pipeline > 1 else 0.0
    return tensor + context + expert + pipeline


def _between_steps(spec: RLJobSpec, shape: Shape, machine: Machine, volumes: TrafficBytes) -> float:
    """Gradients and parameters of the optimizer's steps, what offload moves there and back, and what the host updates."""
    lay = Layout.of(spec, names.ROLE_TRAINER)
    reduced = (volumes.data + volumes.expert_data) / _rate(spec, machine, lay.world // lay.pipeline)
    networks = [stage.networks for stage in stages(spec, shape)]
    moved = max(sum(n.moved for n in own) for own in networks)
    on_host = max(sum(map(_step_on_host, own)) for own in networks)
    return reduced + 2 * moved / PCIE + Amounts.of(spec).updates * on_host


def _step_on_host(network: ModelBytes) -> float:
    """Seconds of an optimizer step that is taken there."""
    narrow = network.moments < 2 * FLOAT
    return network.updated_parameters / ON_HOST * (NARROW_MOMENTS if narrow else 1)


def _volumes(spec: RLJobSpec, shape: Shape, passes: PassCounts) -> TrafficBytes:
    epochs = spec.train.epochs_per_step
    return TrafficBytes.of(spec, shape, names.ROLE_TRAINER, passes.learning / epochs, passes.forward / epochs)


def _rate(spec: RLJobSpec, machine: Machine, span: int) -> float:
    """Bytes per second of one rank to ranks of a group that lies within `span` consecutive ones."""
    per_node = spec.trainer.processes_per_node
    between = min(machine.rates.neighbours, machine.cards.rate / per_node)
    return machine.rates.neighbours if span <= per_node else between
