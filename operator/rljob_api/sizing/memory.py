"""An estimate of what one GPU has to hold, by what holds it and by phase of a step.

It is for people who choose a layout. Only what is there for certain, and cannot fit, is refused by it (`Phase.certain`, when ranks start).

Trainer, per rank of the first and the last pipeline stage, of which the larger is told (b bytes of a parameter, P the rank's own parameters, d the
ranks that share the optimizer's states: data x context parallel):

    weights, gradients, optimizer
        b P, 4 P and (8 + 4 [b < 4]) P/d: bfloat16 6 + 12/d bytes per parameter and float32 8 + 8/d (megatron-core docs, dist_optimizer);
        with LoRA b (P + A), 4 A and (8 + 4 [b < 4]) A/d, with A the rank's part of the adapters' parameters
    activations
        per layer and token b (4 hidden + 2 queries + 2 keys and values + 3 feed-forward) / t, each tensor that a backward pass needs once,
        with experts topk (hidden + 3 feed-forward): each of a token's experts has a copy of it, and shared ones have 3 feed-forward more
        (Korthikanti et al. arXiv 2205.05198 section 4, for SwiGLU, without the attention matrix, which flash attention computes again);
        without sequence parallelism the hidden part is not divided by t; full recomputation keeps the inputs of the layers that are
        computed again together, and has their activations then; a stage holds as many
        micro-batches as there are stages after it, itself included, interleaved (1 + (p-1)/(p v)) times as many (ibid. section 4.2.3)
    vision tower
        whole on every rank; what spec.model.freeze names has weights alone. Activations as if every token were of an image, none of a frozen tower
    logits
        of the last stage: (b + 4) bytes x tokens x vocabulary / t, kept and in float32

Rollout, per GPU of a server: weights b P / tensorParallel; keys and values 2 b layers groups head tokens / tensorParallel for the samples that one
server has in flight at their longest, at most vLLM's max-num-seqs; with multi-latent attention b layers (latent + rotated part) tokens, whole on
each GPU. A colocated server takes the whole share that it was given.

Beside tensors, by phase: CUDA's contexts, loaded kernels, workspaces of libraries, buffers of NCCL and captured graphs, as measured.
Not counted: what the allocator cannot use.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout, rollout_pods, servers_per_pod
from rljob_api.sizing.serving import SERVER_SHARE, sequences, server_defaults
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload

FLOAT = 4
GIB = 2**30
TRAINER_OVERHEAD, SERVER_OVERHEAD = 4 * GIB, 2 * GIB
"""Bytes of a GPU that a rank and a colocated server hold beside tensors and the server's share: one H200 each, 1.5 B parameters, 4.1 and 2.3 GiB."""


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

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))


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
    """For the samples that one server has in flight, at their longest."""
    there: float
    """At most: vLLM's share of the GPU without the weights. Its own activations and graphs come off that."""


def cache_memory(spec: RLJobSpec, shape: Shape, device: float) -> CacheMemory:
    """Of a GPU of `device` bytes."""
    needed, given = rollout_memory(spec, shape), server_defaults(spec) | spec.rollout.vllm_args
    share = float(given.get("gpu-memory-utilization", SERVER_SHARE))
    there = float(given.get("kv-cache-memory-bytes") or max(0.0, device * share - needed.weights))
    return CacheMemory(wanted=needed.kv_cache, there=there)


def trainer_memory(spec: RLJobSpec, shape: Shape) -> TrainerMemory:
    """The first stage holds most activations, the last one the logits: the larger sum counts."""
    return max((_at_most(spec, stage) for stage in _stages(spec, shape)), key=lambda m: m.total)


def gang_memory(spec: RLJobSpec, shape: Shape, role: str) -> TrainerMemory:
    """Of the gang of another model with as many parameters as the policy. A critic learns; the others run forward passes, one layer after the
    other. Only the reference has logits."""
    own = spec.of_gang(role)
    lay = Layout.of(own, names.ROLE_TRAINER)
    found = []
    for number, stage in zip(_ends(own), _stages(own, shape), strict=True):
        n = _trained(spec, lay, 0.0, *_own(shape, lay, number))
        if role == names.ROLE_CRITIC:
            found.append(TrainerMemory(n.parameters, n.gradients, n.optimizer, stage.activations, 0.0, 0.0))
        else:
            logits = stage.logits if role == names.ROLE_REFERENCE else 0.0
            found.append(TrainerMemory(n.parameters, 0.0, 0.0, stage.layer, logits, 0.0))
    return max(found, key=lambda m: m.total)


def _at_most(spec: RLJobSpec, stage: "_Stage") -> TrainerMemory:
    """While the policy trains."""
    policy, *others = stage.networks
    optimizer, activations, logits = policy.optimizer, stage.activations, stage.logits
    if spec.trainer.offload.optimizer:  # it is there only when activations are not
        optimizer, activations, logits = (
            (optimizer, 0.0, 0.0) if optimizer > stage.passing else (0.0, activations, logits)
        )
    return TrainerMemory(
        weights=policy.parameters,
        gradients=policy.gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        other_models=_held(others),
    )


PhaseName = Literal["generate", "score", "train", "sync", "save"]


@dataclass(frozen=True, slots=True)
class Phase:
    """Bytes on one GPU of a trainer pod in a phase of the step."""

    name: PhaseName
    state: float
    """Parameters, gradients and moments that have to be there."""
    server: float
    """What the colocated server has to have."""
    estimate: float = 0.0
    """Activations and logits; in `sync` the server's staged update, which waits in host memory where there is no room for it; on a GPU also what its
    processes hold beside tensors."""

    @property
    def certain(self) -> float:
        return self.state + self.server

    @property
    def total(self) -> float:
        return self.certain + self.estimate


def phases(spec: RLJobSpec, shape: Shape, device: float) -> list[Phase]:
    """Of every phase the stage that holds most; `device`: bytes of the GPU.

    generate: the server is awake, the trainer rests. score: forward passes of one model after the other. train: the server sleeps. sync: both
    hold the weights. save: parameters and moments are brought back beside a server that is awake; for any layout, as at the end, also the gradient
    buffers, of one network at a time: its optimizer is gathered in them.
    """
    weights, awake = _server(spec, shape, device)
    staged = weights * spec.rollout.tensor_parallel  # every worker stages the whole update
    stages = [_phases(stage, weights, staged, awake) for stage in _stages(spec, shape)]
    most = [max(same, key=lambda p: p.total) for same in zip(*stages, strict=True)]
    return [replace(p, estimate=p.estimate + _beside_tensors(spec)) for p in most]


def _phases(stage: "_Stage", weights: float, staged: float, awake: float) -> list[Phase]:
    """`weights`, `awake`: what the server holds when its weights are back, and when it generates; `staged`: the update that it receives."""
    networks, policy = stage.networks, stage.networks[0]
    frozen, trained = ([n for n in networks if bool(n.gradients) == learns] for learns in (False, True))
    backward = max(_held(networks, n, "parameters", "gradients") for n in trained) + stage.passing
    update = max(_held(networks, n, "parameters", "gradients", "optimizer") for n in trained)
    gathering = max(n.gradients if n.offload.gradients else 0.0 for n in trained)
    return [
        Phase("generate", _held(networks), awake),
        Phase("score", max(_held(networks, n, "parameters") for n in networks), 0.0, stage.layer + stage.logits),
        Phase("train", update, 0.0, max(0.0, backward - update)),
        Phase("sync", _held(networks, policy, "parameters"), weights, staged),
        Phase("save", _held(frozen) + sum(n.held("parameters", "optimizer") for n in trained) + gathering, awake),
    ]


def _beside_tensors(spec: RLJobSpec) -> float:
    if spec.trainer.device == "cpu":
        return 0.0
    return TRAINER_OVERHEAD + (SERVER_OVERHEAD if spec.rollout.placement == "colocated" else 0.0)


def _server(spec: RLJobSpec, shape: Shape, device: float) -> tuple[float, float]:
    """Weights of a colocated one, and all that it has when it generates."""
    if spec.rollout.placement != "colocated":
        return 0.0, 0.0
    weights, given = rollout_memory(spec, shape).weights, server_defaults(spec) | spec.rollout.vllm_args
    if cache := given.get("kv-cache-memory-bytes"):
        return weights, weights + float(cache)
    return weights, device * float(given["gpu-memory-utilization"])


Part = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True, slots=True)
class _Network:
    """Bytes of one model's parts on a rank; one that does not learn has parameters alone."""

    parameters: float
    gradients: float
    optimizer: float
    offload: Offload

    def held(self, *used: Part) -> float:
        """On the GPU while `used` are needed."""
        parts: tuple[Part, ...] = ("parameters", "gradients", "optimizer")
        return sum(getattr(self, part) for part in parts if part in used or not getattr(self.offload, part))


def _held(networks: Sequence[_Network], busy: _Network | None = None, *used: Part) -> float:
    """By all of them while one uses these parts."""
    return sum(n.held(*used) if n is busy else n.held() for n in networks)


@dataclass(frozen=True, slots=True)
class _Stage:
    """One rank of a pipeline stage."""

    networks: list[_Network]
    """The policy first."""
    layer: float
    """Activations of one layer of one micro-batch."""
    activations: float
    """Of all layers and micro-batches that wait for their backward pass."""
    logits: float

    @property
    def passing(self) -> float:
        return self.activations + self.logits


def _stages(spec: RLJobSpec, shape: Shape) -> list[_Stage]:
    return [_stage(spec, shape, stage) for stage in _ends(spec)]


def _ends(spec: RLJobSpec) -> list[int]:
    """The first stage and the last, between which all others lie."""
    return sorted({0, Layout.of(spec, names.ROLE_TRAINER).pipeline - 1})


def _stage(spec: RLJobSpec, shape: Shape, stage: int) -> _Stage:
    lay, width = Layout.of(spec, names.ROLE_TRAINER), BYTES[spec.model.dtype]
    last = stage == lay.pipeline - 1
    dense, experts = _own(shape, lay, stage)
    tokens = spec.train.tokens_per_micro_batch / lay.context
    layer, passed = tokens * _layer(spec, shape, width), tokens * width * shape.hidden / _cut(spec)
    whole, inputs, again = _kept(spec, shape.layers / lay.pipeline)
    return _Stage(
        networks=_networks(spec, shape, dense, experts),
        layer=layer,
        activations=(whole * layer + inputs * passed) * _in_flight(lay, stage)
        + again * layer
        + tokens * width * _seen(spec, shape),
        logits=(width + FLOAT) * tokens * _outputs(spec, shape) / lay.tensor if last else 0.0,
    )


def _outputs(spec: RLJobSpec, shape: Shape) -> float:
    """Numbers that the last layer makes of a token: a logit for each word, or a reward model's score, which tensor-parallel ranks do not share."""
    return spec.trainer.parallelism.tensor if spec.task == "rewardModel" else shape.vocabulary


def _own(shape: Shape, lay: Layout, stage: int) -> tuple[float, float]:
    """A rank's dense parameters and its experts'. A tied output layer is a second copy of the embedding when stages are apart."""
    layers = shape.layers / lay.pipeline
    ends = (stage == 0) + (stage == lay.pipeline - 1)
    tables = 1 if shape.tied and lay.pipeline == 1 else ends
    dense = (layers * shape.dense + tables * shape.embedding) / lay.tensor
    return dense, layers * shape.expert / (lay.expert * lay.expert_tensor)


def _layer(spec: RLJobSpec, shape: Shape, width: int) -> float:
    """Bytes of activations per token and layer."""
    wide = 3 * shape.feed_forward
    if shape.experts:
        wide = shape.experts_per_token * (shape.hidden + 3 * shape.expert_feed_forward) + 3 * shape.shared_feed_forward
    return width * (4 * shape.hidden / _cut(spec) + (shape.attended + wide) / spec.trainer.parallelism.tensor)


def _seen(spec: RLJobSpec, shape: Shape) -> int:
    """Numbers of a token of an image that the tower keeps for its backward pass."""
    return shape.tower.kept if shape.tower and "vision" not in spec.model.freeze else 0


def _cut(spec: RLJobSpec) -> int:
    """Tensor-parallel ranks that share the activations between the matrices."""
    return spec.trainer.parallelism.tensor if spec.trainer.parallelism.sequence else 1


def _kept(spec: RLJobSpec, layers: float) -> tuple[float, float, float]:
    """Of a stage's layers: how many keep all activations and how many inputs are kept, per micro-batch, and how many are computed again at a time."""
    r = spec.trainer.recompute
    if r.granularity != "full":
        return layers, 0.0, 0.0
    if r.method == "uniform":
        return 0.0, layers / r.layers, r.layers
    inputs = min(layers, r.layers * spec.trainer.parallelism.virtual_pipeline)
    return layers - inputs, inputs, 1.0


def _in_flight(lay: Layout, stage: int) -> float:
    if lay.virtual_pipeline > 1:
        return (lay.pipeline - stage) * (1 + (lay.pipeline - 1) / (lay.pipeline * lay.virtual_pipeline))
    return lay.pipeline - stage


def _networks(spec: RLJobSpec, shape: Shape, dense: float, experts: float) -> list[_Network]:
    """Models of so many parameters that share the policy's ranks. A reference in host memory takes the policy's place and is none of its own."""
    lay, width = Layout.of(spec, names.ROLE_TRAINER), BYTES[spec.model.dtype]
    tower = shape.tower.parameters() if shape.tower else 0
    learnt = shape.tower.parameters(tuple(spec.model.freeze)) if shape.tower else 0
    weights = width * (dense + experts + tower)
    whole = policy = _trained(spec, lay, width * (tower - learnt), dense + learnt, experts)
    if spec.model.lora:
        adapters = shape.adapters(spec.model.lora) * shape.layers / lay.pipeline / lay.tensor
        policy = _trained(spec, lay, weights, adapters, 0.0)
    found = [replace(policy, offload=spec.trainer.offload)]
    if spec.critic and not spec.critic.processes_per_node:
        found.append(replace(whole, offload=spec.critic.offload))
    if spec.has_reference and not spec.reference.offload and names.ROLE_REFERENCE not in spec.gangs:
        found.append(_Network(weights, 0.0, 0.0, Offload()))
    judges = [r.model for r in spec.rewards if r.model and not r.model.processes_per_node]
    return found + [_Network(weights, 0.0, 0.0, Offload(parameters=judge.offload)) for judge in judges]


def _trained(spec: RLJobSpec, lay: Layout, frozen: float, dense: float, experts: float) -> _Network:
    """Of so many parameters that learn, beside so many bytes of others."""
    width = BYTES[spec.model.dtype]
    state = 2 * FLOAT + (FLOAT if width < FLOAT else 0)
    optimizer = state * (dense / (lay.data * lay.context) + experts / lay.expert_copies)
    own = dense + experts
    return _Network(frozen + width * own, FLOAT * own, optimizer, Offload())


def rollout_memory(spec: RLJobSpec, shape: Shape) -> RolloutMemory:
    """For one GPU of one server."""
    width, t = BYTES[spec.model.dtype], spec.rollout.tensor_parallel
    servers = spec.trainer.nodes * servers_per_pod(spec) or max(1, rollout_pods(spec))
    amounts = Amounts.of(spec)
    samples = min(sequences(spec), -(-amounts.samples_per_step // servers))
    per_token = width * shape.layers * _cached(shape, t)
    return RolloutMemory(weights=width * shape.parameters / t, kv_cache=per_token * samples * amounts.longest)


def _cached(shape: Shape, tensor: int) -> float:
    """Numbers that one GPU of a server keeps of a token, in each layer."""
    if shape.latent:
        return shape.latent.key_value + shape.latent.rotated
    return 2 * max(1.0, shape.groups / tensor) * shape.head
