"""How long a step takes by a model of its operations and bytes, which ranks layouts. It is no measurement: docs/sizing.md compares both.

Training: operations of all passes over the GPU's rate, at a share that its kernels reach, longer by the busiest stage and by the pipeline's bubble,
(m + (p - 1)/v) / m with m micro-batches (Narayanan et al. arXiv 2104.04473 section 2.2); plus what communicators move (traffic.py) over NVLink where
their ranks share a node, and over its network cards where not, without overlap; plus what sparse attention computes besides (sparse_attention.py). In
place of all of these the time in which a rank's process starts the products of its experts one by one, if that is longer: the GPU then waits for it.
Plus what offload moves over PCIe, and steps of the optimizer on the host (`offload.update`).

Generation: per token of a response the bytes of weights and of keys and values over the rate of the GPU's memory, or the operations over its rate if
these take longer, and what scheduling costs; in as many rounds as the cache has room for less than all samples. In the mean of the time a sample has
half of its response. Pipeline stages take turns, with a share of the samples each, so together they read all weights at each step as one does; what
pods of a server send each other is added without overlap.

Every sample counts at its longest, as everywhere in `plan`.
"""

import math
from dataclasses import dataclass

from rljob_api import names
from rljob_api.sizing import network
from rljob_api.sizing.devices import Rates
from rljob_api.sizing.layout import Amounts, Layout, wanted_servers
from rljob_api.sizing.memory import PhaseName, cache_memory, in_flight, rollout_memory
from rljob_api.sizing.network import Cards
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.sparse_attention import chooses, is_shared, scores
from rljob_api.sizing.stage import operations, shares, stages
from rljob_api.sizing.traffic import TrafficBytes, forward_passes
from rljob_api.spec import RLJobSpec

KERNELS, KERNELS_OF_EXPERTS = 0.55, 0.35
"""Share of a GPU's operations that a training pass reaches: 0.51 to 0.58 measured for 1.5 B and 7 B (docs/evidence/gpus.md). With experts
Megatron-Bridge has published 0.24 and 0.31 for Qwen3-30B-A3B and 235B on H100, with their communication."""
STARTING = 0.158e-3
"""Seconds for which Transformer Engine keeps a rank's process busy with one of its grouped products: 0.137 to 0.182 by five measured steps of
Qwen3-30B-A3B with 8, 16 and 48 layers, in four leases, and 0.13 to 0.15 by a profile of one of them."""
DECODING, READING = 0.5, 0.8
"""Share of a GPU's operations and of its memory's rate that decoding reaches."""
STEP, SCHEDULING, EXCHANGE = 1e-3, 7e-6, 15e-6
"""Seconds of a decoding step besides; for each response in it; and of each layer where tensor-parallel workers add up what they have, twice."""
EXCHANGING = 0.45
"""Share of NVLink's rate that tensor-parallel ranks reach, with the gaps around their many small exchanges."""
PCIE = 50e9
"""Bytes per second between a GPU and host memory: 55e9 were measured into pinned memory (H200)."""

ON_HOST = 24e9
"""Bytes of the optimizer's states, 12 a parameter, that a rank's share of the host takes a step with in a second: 16 CPUs of an H100's host."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a job runs on."""

    rates: Rates
    memory: float
    """Bytes of a GPU."""
    cards: Cards


@dataclass(frozen=True, slots=True)
class Speed:
    """Modelled seconds of a step's parts."""

    generate: float
    """0: the job has no servers."""
    train: float
    sync: float
    """Of the servers, to the new policy."""
    tokens: float
    """Of prompts and responses in a step, at most."""
    overlapped: bool
    """Generation and training go on at the same time."""

    @property
    def phases(self) -> dict[PhaseName, float]:
        """Those that the job has."""
        if not self.generate:
            return {"train": self.train}
        return {"generate": self.generate, "train": self.train, "sync": self.sync}

    @property
    def seconds(self) -> float:
        both = max(self.generate, self.train) if self.overlapped else self.generate + self.train
        return both + self.sync

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def speed(spec: RLJobSpec, shape: Shape, machine: Machine) -> Speed:
    amounts = Amounts.of(spec)
    served = wanted_servers(spec) > 0
    apart = served and spec.rollout.placement != "colocated"
    return Speed(
        generate=_generate(spec, shape, machine) if served else 0.0,
        train=_train(spec, shape, machine),
        sync=network.sync(spec, shape).seconds(machine.cards),
        tokens=float(amounts.samples_per_step * amounts.longest),
        overlapped=apart and spec.train.staleness > 0,
    )


def _train(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Of all passes of a step."""
    lay, amounts = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec)
    busiest = max(operations(spec, shape)) * _passes(spec) * amounts.samples_per_step / lay.data
    computing = busiest / (lay.tensor * lay.context) / _kernels(shape, machine)
    computing += _sparse_attention(spec, shape, machine) + _within_layers(spec, shape, machine)
    micro = _micro_batches(spec)
    bubble = (micro + (lay.pipeline - 1) / lay.virtual_pipeline) / micro
    return max(computing, _starting(spec, shape)) * bubble + _between_steps(spec, shape, machine)


def _passes(spec: RLJobSpec) -> float:
    """Over the tokens of a step, in forward passes. A backward pass takes as long as two of them; with adapters as one, since frozen matrices need no
    gradient."""
    again = spec.trainer.recompute.granularity == "full"
    backward = 1 if spec.adapters else 2
    return spec.train.epochs_per_step * (1 + backward + again + forward_passes(spec))


def _micro_batches(spec: RLJobSpec) -> int:
    """Of an optimizer step, in each copy of the model."""
    lay, amounts = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec)
    samples = max(1, spec.train.tokens_per_micro_batch // amounts.longest)
    count = max(1, math.ceil(amounts.samples_per_mini_batch / lay.data / samples))
    return -(-count // lay.micro_batch_multiple) * lay.micro_batch_multiple


def _starting(spec: RLJobSpec, shape: Shape) -> float:
    """Seconds in which a rank's process starts the products of its experts, two of each in a forward pass over a micro-batch; 0: there are none."""
    if not shape.experts:
        return 0.0
    own = shape.experts / Layout.of(spec, names.ROLE_TRAINER).expert
    layers = max(share.mixed for share in shares(spec, shape))
    products = 2 * layers * own * _passes(spec) * _micro_batches(spec) * spec.train.mini_batches
    return products * STARTING


def _kernels(shape: Shape, machine: Machine) -> float:
    """Operations of a training pass per second."""
    return machine.rates.operations * (KERNELS_OF_EXPERTS if shape.experts else KERNELS)


def _sparse_attention(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Seconds of a rank for what its layers compute besides: scores in every forward pass, and attention a second time before its backward pass."""
    if not chooses(spec, shape):
        return 0.0
    lay, amounts, epochs = Layout.of(spec, names.ROLE_TRAINER), Amounts.of(spec), spec.train.epochs_per_step
    again = spec.trainer.recompute.granularity == "full" and not is_shared(shape)
    computed, moved = scores(spec, shape)
    scoring = computed / machine.rates.float32 + moved / (machine.rates.memory * READING)
    attending = shape.work.square / shape.layers * amounts.longest**2 / lay.tensor / _kernels(shape, machine)
    of_layer = epochs * ((1 + again + forward_passes(spec)) * scoring + attending)
    layers = max(share.layers for share in shares(spec, shape))
    return layers * of_layer * amounts.samples_per_step / (lay.data * lay.context)


def _within_layers(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Seconds that a rank waits for what its layers exchange."""
    lay, volumes = Layout.of(spec, names.ROLE_TRAINER), _volumes(spec, shape)
    tensor = volumes.tensor / (machine.rates.neighbours * EXCHANGING)
    context = volumes.context / _rate(spec, machine, lay.tensor * lay.context)
    others = volumes.expert * (lay.expert - 1)
    expert = others / _rate(spec, machine, lay.expert * lay.expert_tensor)
    pipeline = volumes.pipeline / _rate(spec, machine, lay.world) if lay.pipeline > 1 else 0.0
    return tensor + context + expert + pipeline


def _between_steps(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Gradients and parameters of the optimizer's steps, what offload moves there and back, and what the host updates."""
    lay, volumes = Layout.of(spec, names.ROLE_TRAINER), _volumes(spec, shape)
    reduced = (volumes.data + volumes.expert_data) / _rate(spec, machine, lay.world // lay.pipeline)
    networks = [stage.networks for stage in stages(spec, shape)]
    moved, updated = (
        max(sum(n.moved for n in own) for own in networks),
        max(sum(n.updated for n in own) for own in networks),
    )
    return reduced + 2 * moved / PCIE + Amounts.of(spec).updates * updated / ON_HOST


def _volumes(spec: RLJobSpec, shape: Shape) -> TrafficBytes:
    return TrafficBytes.of(spec, shape, names.ROLE_TRAINER, 1, forward_passes(spec))


def _rate(spec: RLJobSpec, machine: Machine, span: int) -> float:
    """Bytes per second of one rank to ranks of a group that lies within `span` consecutive ones."""
    per_node = spec.trainer.processes_per_node
    return (
        machine.rates.neighbours if span <= per_node else min(machine.rates.neighbours, machine.cards.rate / per_node)
    )


def _generate(spec: RLJobSpec, shape: Shape, machine: Machine) -> float:
    """Of all responses of a step on all servers."""
    amounts, servers, width = Amounts.of(spec), spec.rollout, BYTES[spec.model.dtype]
    t = servers.tensor_parallel
    samples = in_flight(spec) / servers.data_parallel  # of one copy, as what follows
    memory, cache = rollout_memory(spec, shape), cache_memory(spec, shape, machine.memory)
    share = (spec.data.max_prompt_tokens + spec.longest_response / 2) / amounts.longest
    fitting = max(1.0, samples * min(1.0, cache.there / cache.wanted / share))
    rounds = amounts.samples_per_step / max(1, wanted_servers(spec)) / servers.data_parallel / fitting
    together = fitting * servers.data_parallel
    chosen = 1 - (1 - shape.experts_per_token / shape.experts) ** together if shape.experts else 0.0
    experts = shape.expert * shape.layers
    weights = width * ((shape.parameters - experts) + chosen * experts / servers.data_parallel) / t
    read = (weights + fitting * memory.kv_cache / samples * share) / (machine.rates.memory * READING)
    rate = t * servers.pipeline_parallel * machine.rates.operations * DECODING
    computed = fitting * shape.work.token / rate
    exchanged = 2 * shape.layers * EXCHANGE if t > 1 else 0.0
    besides = STEP + SCHEDULING * fitting
    between = network.generation(spec, shape).seconds(machine.cards)
    prompt = spec.data.max_prompt_tokens * fitting * shape.work.token / rate
    return rounds * (spec.longest_response * (max(read, computed) + exchanged + besides) + prompt) + between
