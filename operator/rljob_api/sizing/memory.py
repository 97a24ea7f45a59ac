"""An estimate of what one GPU has to hold, by what holds it and by phase of a step.

It is for people who choose a layout. When ranks start, only what is there for certain, and cannot fit, is refused by it (`PhaseMemory.certain`); by
`plan` also an estimate that is far too large (kubectl_rljob/fitting.py).

Trainer: the pipeline stage that holds most (stage.py has the formulas).

Rollout, per GPU of a server: its weights (replica.py), and keys and values 2 b layers groups head tokens / tensorParallel of its pipeline stage, for
the samples that one server has in flight at their longest, at most vLLM's max-num-seqs; with multi-latent attention b layers (latent +
rotated part) tokens, whole on each GPU; with delta nets of the other layers alone. A colocated server takes the whole share that it was given. Of
servers that share a GPU, `RolloutMemory` and `CacheMemory` are of one, and phases count all.

Outside tensors, by phase: CUDA's contexts, loaded kernels, workspaces of libraries, buffers of NCCL and captured graphs, as measured.
Not counted: what the allocator cannot use.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal

from rljob_api import names
from rljob_api.sizing import guessing
from rljob_api.sizing.layout import Amounts, Layout, spec_of_gang, wanted_servers
from rljob_api.sizing.replica import (
    SERVER_SHARE,
    in_transfer,
    layers,
    longest_context,
    sequences,
    server_defaults,
    weights,
)
from rljob_api.sizing.server_arguments import cache_bytes
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.stage import (
    ModelBytes,
    Part,
    Stage,
    fullest,
    held_by,
    own_parameters,
    passes,
    stages,
    trained_network,
)
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import PoolSpec

GIB = 2**30
TRAINER_OVERHEAD, SERVER_OVERHEAD = 4 * GIB, 2 * GIB
"""Bytes of a GPU that a rank and a colocated server hold outside tensors and the server's share: one H200 each, 1.5 B parameters, 4.1 and 2.3 GiB."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes on one GPU of a trainer pod, at the moment when most is held."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    other_models: float
    """Critic, reference and reward models that are not in host memory."""
    outside: float = 0.0
    """What processes hold outside tensors."""

    @property
    def total(self) -> float:
        return sum(_PARTS_OF_TRAINER(self))


_PARTS_OF_TRAINER = attrgetter(*(field.name for field in fields(TrainerMemory)))


@dataclass(frozen=True, slots=True)
class RolloutMemory:
    """Bytes on one GPU of a rollout pod. vLLM takes what is free for its cache, so a smaller one is slower and not wrong."""

    weights: float
    kv_cache: float

    @property
    def total(self) -> float:
        return self.weights + self.kv_cache


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Bytes for keys and values on one GPU of a rollout server."""

    wanted: float
    """Needed for the samples that one server generates at a time, at their longest."""
    there: float
    """What there is at most: vLLM's share of the GPU without the weights. Its own activations and graphs reduce it further. Negative if the weights
    do not fit."""
    tokens: float
    """Tokens for which a whole server has room there."""

    def holds_a_sample(self, spec: RLJobSpec) -> bool:
        """At its longest, in one data-parallel copy. vLLM starts no server that cannot."""
        return self.tokens >= longest_context(spec) * spec.rollout.data_parallel


def cache_memory(spec: RLJobSpec, shape: Shape, device: float) -> CacheMemory:
    """The cache of a rollout server on GPUs of `device` bytes."""
    needed, given = rollout_memory(spec, shape), server_defaults(spec) | spec.rollout.vllm_args
    share = float(given.get("gpu-memory-utilization", SERVER_SHARE))
    there = float(given.get("kv-cache-memory-bytes") or device * share - needed.weights)
    tokens = max(0.0, there) / cached_per_token(spec, shape) * spec.rollout.data_parallel
    return CacheMemory(wanted=needed.kv_cache, there=there, tokens=tokens)


def trainer_memory(spec: RLJobSpec, shape: Shape) -> TrainerMemory:
    """Of the stage that holds most: the first has most activations, the last one the logits, and one between them may have more layers."""
    return max((_at_most(spec, stage) for stage in stages(spec, shape)), key=lambda m: m.total)


def gang_memory(spec: RLJobSpec, shape: Shape, role: str) -> TrainerMemory:
    """Memory of another model's gang, if that model has as many parameters as the policy. A critic learns; the others run forward passes, one layer
    after another. Only the reference has logits."""
    lay, own, needs = Layout.of(spec, role), spec_of_gang(spec, role), []
    for share in fullest(spec, shape, role):
        forward, activations, logits = passes(spec, shape, share, role)
        n = trained_network(spec, lay, own.train.optimizer, 0.0, *own_parameters(shape, lay, share))
        if role == names.ROLE_CRITIC:
            needs.append(TrainerMemory(n.parameters, n.gradients, n.optimizer, activations, 0.0, 0.0))
        else:
            needs.append(
                TrainerMemory(n.parameters, 0.0, 0.0, forward, logits if role == names.ROLE_REFERENCE else 0.0, 0.0)
            )
    return replace(max(needs, key=lambda m: m.total), outside=outside_tensors(own))


def _at_most(spec: RLJobSpec, stage: Stage) -> TrainerMemory:
    """Memory of a stage while the policy trains or, with evaluation.only, is measured."""
    policy, *others = stage.networks
    optimizer, logits = policy.optimizer, stage.logits
    activations = stage.forward if spec.evaluation.only else stage.activations
    if spec.trainer.offload.update:
        optimizer = 0.0
    elif spec.trainer.offload.optimizer:  # it is there only when activations are not
        optimizer, activations, logits = (
            (optimizer, 0.0, 0.0) if optimizer > stage.passing else (0.0, activations, logits)
        )
    return TrainerMemory(
        weights=policy.parameters,
        gradients=policy.gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        other_models=held_by(others),
    )


PhaseName = Literal["generate", "score", "train", "sync", "save"]


@dataclass(frozen=True, slots=True)
class PhaseParts:
    """Bytes on one GPU of a trainer pod by what holds them, at one moment."""

    weights: float = 0.0
    """Of all models on the rank, as the next two."""
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    buckets: float = 0.0
    """In which a policy travels to the servers."""
    outside: float = 0.0
    """What processes hold outside tensors."""
    server: float = 0.0
    """What colocated servers have to have."""

    @property
    def total(self) -> float:
        return sum(_PARTS_OF_PHASE(self))


_PARTS_OF_PHASE = attrgetter(*(field.name for field in fields(PhaseParts)))


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Bytes on one GPU of a trainer pod in a phase of the step."""

    name: PhaseName
    state: float
    """Parameters, gradients and moments that have to be there."""
    parts: PhaseParts
    """At the moment of the phase when most is held."""

    @property
    def server(self) -> float:
        return self.parts.server

    @property
    def certain(self) -> float:
        return self.state + self.server

    @property
    def total(self) -> float:
        return self.parts.total

    @property
    def estimate(self) -> float:
        """Activations and logits; in `sync` the buckets; on a GPU also what its processes hold outside tensors. As far as it is more than `state`."""
        return self.total - self.certain


def phases(spec: RLJobSpec, shape: Shape, device: float) -> list[PhaseMemory]:
    """The phases of the job's steps, each for the stage that holds most. `device`: bytes of the GPU.

    generate: the server is awake, the trainer rests. score: forward passes of one model after the other. train: the server sleeps. sync: both
    hold the weights. save: parameters and moments are brought back while the server is awake.
    """
    weights, awake = _server(spec, shape, device)
    sent, outside = in_transfer(spec, shape), outside_tensors(spec)
    of_stages = [_phases(stage, weights, sent, awake) for stage in stages(spec, shape)]
    most = [max(same, key=lambda p: p.total) for same in zip(*of_stages, strict=True)]
    there = _there(spec)
    return [replace(p, parts=replace(p.parts, outside=outside)) for p in most if there[p.name]]


def _there(spec: RLJobSpec) -> dict[PhaseName, bool]:
    """Which phases a job has."""
    served, trained = wanted_servers(spec) > 0, not spec.evaluation.only
    measured_alone = spec.has_reference or spec.evaluation.takes_place
    scored = measured_alone if spec.supervised else trained
    return {"generate": served, "score": scored, "train": trained, "sync": served, "save": trained}


def _phases(stage: Stage, weights: float, sent: float, awake: float) -> list[PhaseMemory]:
    """`weights`, `awake`: what servers hold when their weights are back, and when they generate; `sent`: buckets of what they receive."""
    networks, policy = stage.networks, stage.networks[0]
    trained = [n for n in networks if n.gradients]
    rest = _models(networks)
    scoring = _fullest(_models(networks, [n], "parameters") for n in networks)
    update = _fullest(_models(networks, [n], "parameters", "gradients", "optimizer") for n in trained)
    backward = _fullest(_models(networks, [n], "parameters", "gradients") for n in trained)
    passing = replace(backward, activations=stage.activations, logits=stage.logits)
    sync, save = _models(networks, [policy], "parameters"), _models(networks, trained, "parameters", "optimizer")
    return [
        PhaseMemory("generate", rest.total, replace(rest, server=awake)),
        PhaseMemory("score", scoring.total, replace(scoring, activations=stage.forward, logits=stage.logits)),
        PhaseMemory("train", update.total, _fullest((update, passing))),
        PhaseMemory("sync", sync.total, replace(sync, buckets=sent, server=weights)),
        PhaseMemory("save", save.total, replace(save, server=awake)),
    ]


def _models(networks: Sequence[ModelBytes], busy: Sequence[ModelBytes] = (), *used: Part) -> PhaseParts:
    """All models of a rank, while those that are `busy` need the parts `used`."""
    held = [n.parts(*used) if any(n is one for one in busy) else n.parts() for n in networks]
    weights, gradients, optimizer = (
        sum(parts.get(part, 0.0) for parts in held) for part in ("parameters", "gradients", "optimizer")
    )
    return PhaseParts(weights, gradients, optimizer)


def _fullest(moments: Iterable[PhaseParts]) -> PhaseParts:
    return max(moments, key=lambda parts: parts.total, default=PhaseParts())


def outside_tensors(spec: RLJobSpec) -> float:
    """Bytes that the processes on a GPU hold besides, in every phase."""
    if spec.trainer.device == "cpu":
        return 0.0
    servers = spec.rollout.servers_per_gpu if spec.rollout.placement == "colocated" else 0
    return TRAINER_OVERHEAD + servers * SERVER_OVERHEAD


def _server(spec: RLJobSpec, shape: Shape, device: float) -> tuple[float, float]:
    """Bytes of the weights of a GPU's colocated servers, and of all that they hold while they generate."""
    if spec.rollout.placement != "colocated":
        return 0.0, 0.0
    held, given = rollout_memory(spec, shape).weights, server_defaults(spec) | spec.rollout.vllm_args
    servers, cache = spec.rollout.servers_per_gpu, given.get("kv-cache-memory-bytes")
    awake = held + float(cache) if cache else device * float(given["gpu-memory-utilization"])
    return servers * held, servers * awake


def rollout_memory(spec: RLJobSpec, shape: Shape) -> RolloutMemory:
    """Memory of one GPU of a rollout server, without other servers that share it."""
    rollout = spec.rollout
    return RolloutMemory(
        weights=weights(rollout, shape, BYTES[spec.model.dtype]),
        kv_cache=cached_per_token(spec, shape) * in_flight(spec) / rollout.data_parallel * Amounts.of(spec).longest,
    )


def in_flight(spec: RLJobSpec) -> int:
    """Samples that one server generates at a time."""
    servers = max(1, wanted_servers(spec))
    return min(sequences(spec), -(-Amounts.of(spec).samples_per_step // servers))


def cached_per_token(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes on one GPU of a server for keys and values of a token."""
    width = cache_bytes(spec.rollout.vllm_args, BYTES[spec.model.dtype])
    numbers = _cached(shape, spec.rollout.tensor_parallel)
    guessing_layers = 1 if guessing.of_server(spec.rollout, shape) else 0
    return (layers(spec.rollout, shape) + guessing_layers) * (width * numbers + _indexed(shape))


def _cached(shape: Shape, tensor: int) -> float:
    """Numbers in the cache of one GPU of a server, per token and layer, as the mean of all: of delta nets, which keep a state of the same size for
    every length, none."""
    if shape.latent:
        return shape.latent.key_value + shape.latent.rotated
    return 2 * max(1.0, shape.groups / tensor) * shape.head * shape.attending


def _indexed(shape: Shape) -> float:
    """Bytes per token and layer, as the mean of all, of the keys of indexers, which vLLM has in FP8 with a scale in float32
    (models/deepseek_v32/attention.py)."""
    if not shape.latent or not shape.latent.index_heads:
        return 0.0
    return shape.latent.indexed * (shape.latent.index_head + 4)


def pool_weights(pool: PoolSpec, shape: Shape) -> float:
    """Bytes of weights on one GPU of a pool's server, at most: vLLM loads 2 bytes per parameter unless `dtype` is float32."""
    width = 4 if pool.vllm_args.get("dtype") in ("float", "float32") else 2
    return weights(pool, shape, width)


def pool_cache(pool: PoolSpec, shape: Shape, device: float) -> float:
    """Bytes for keys and values on one GPU of `device` bytes, at most: vLLM's share without the weights. Negative if the weights do not fit."""
    if given := pool.vllm_args.get("kv-cache-memory-bytes"):
        return float(given)
    share = float(pool.vllm_args.get("gpu-memory-utilization", SERVER_SHARE))
    return device * share - pool_weights(pool, shape)
