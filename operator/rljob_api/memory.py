"""An estimate of what one GPU has to hold, by what holds it. It is for people who choose a layout; nothing is decided by it.

Trainer, per rank of the first and the last pipeline stage, of which the larger is told (b bytes of a parameter, P the rank's own parameters, d the
ranks that share the optimizer's states: data x context parallel):

    weights, gradients, optimizer
        b P, 4 P and (8 + 4 [b < 4]) P/d: bfloat16 6 + 12/d bytes per parameter and float32 8 + 8/d (megatron-core docs, dist_optimizer)
    activations
        per layer and token b (4 hidden + 2 queries + 2 keys and values + 3 feed-forward) / t, each tensor that a backward pass needs once
        (Korthikanti et al. arXiv 2205.05198 section 4, for SwiGLU, without the attention matrix, which flash attention computes again);
        without sequence parallelism the hidden part is not divided by t; full recomputation keeps the input of a layer; a stage holds as many
        micro-batches as there are stages after it, itself included, interleaved (1 + (p-1)/(p v)) times as many (ibid. section 4.2.3)
    logits
        of the last stage: (b + 4) bytes x tokens x vocabulary / t, kept and in float32

Rollout, per GPU of a server: weights b P / tensorParallel; keys and values 2 b layers groups head tokens / tensorParallel for the samples that one
server has in flight at their longest, at most vLLM's max-num-seqs.
"""

from dataclasses import dataclass, fields

from rljob_api.layout import Amounts, Layout
from rljob_api.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import Offload

FLOAT = 4
MAX_SEQUENCES = 256
"""vLLM's default of max-num-seqs for servers."""


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


def trainer_memory(spec: RLJobSpec, shape: Shape) -> TrainerMemory:
    """The first stage holds most activations, the last one the logits: the larger sum counts."""
    stages = {0, Layout.of(spec).pipeline - 1}
    return max((_stage(spec, shape, stage) for stage in sorted(stages)), key=lambda m: m.total)


def _stage(spec: RLJobSpec, shape: Shape, stage: int) -> TrainerMemory:
    lay, width = Layout.of(spec), BYTES[spec.model.dtype]
    last = stage == lay.pipeline - 1
    dense, experts = _own(shape, lay, stage)
    own = dense + experts
    sharers = lay.data * lay.context
    state = 2 * FLOAT + (FLOAT if width < FLOAT else 0)
    optimizer = state * (dense / sharers + experts / lay.expert_copies)
    tokens = spec.train.tokens_per_micro_batch / lay.context
    logits = (width + FLOAT) * tokens * shape.vocabulary / lay.tensor if last else 0.0
    activations = tokens * _layer(spec, shape, width) * shape.layers / lay.pipeline * _in_flight(lay, stage)
    if spec.trainer.offload.optimizer:  # it is there only when activations are not
        optimizer, activations = (optimizer, 0.0) if optimizer > activations + logits else (0.0, activations)
    return TrainerMemory(
        weights=width * own,
        gradients=FLOAT * own,
        optimizer=optimizer,
        activations=activations,
        logits=logits if activations else 0.0,
        other_models=_others(spec, width * own, FLOAT * own, state * own / sharers),
    )


def _own(shape: Shape, lay: Layout, stage: int) -> tuple[float, float]:
    """A rank's dense parameters and its experts'. A tied output layer is a second copy of the embedding when stages are apart."""
    layers = shape.layers / lay.pipeline
    ends = (stage == 0) + (stage == lay.pipeline - 1)
    tables = 1 if shape.tied and lay.pipeline == 1 else ends
    dense = (layers * shape.dense + tables * shape.embedding) / lay.tensor
    return dense, layers * shape.expert / (lay.expert * lay.expert_tensor)


def _layer(spec: RLJobSpec, shape: Shape, width: int) -> float:
    """Bytes of activations per token and layer."""
    t, p = spec.trainer.parallelism.tensor, spec.trainer.parallelism
    cut = t if p.sequence else 1
    if spec.trainer.recompute.granularity == "full":
        return width * shape.hidden / cut
    heads = 2 * shape.head * (shape.heads + shape.groups)
    wide = shape.experts_per_token * shape.expert_feed_forward if shape.experts else shape.feed_forward
    return width * (4 * shape.hidden / cut + (heads + 3 * wide) / t)


def _in_flight(lay: Layout, stage: int) -> float:
    if lay.virtual_pipeline > 1:
        return (lay.pipeline - stage) * (1 + (lay.pipeline - 1) / (lay.pipeline * lay.virtual_pipeline))
    return lay.pipeline - stage


def _others(spec: RLJobSpec, weights: float, gradients: float, optimizer: float) -> float:
    """Models of the policy's size that share its ranks; of each what is not in host memory while the policy trains."""
    held = sum(weights for r in spec.rewards if r.model and not r.model.offload)
    if spec.algorithm.kl.coefficient and not spec.reference.offload:
        held += weights
    if spec.critic:
        held += _kept(spec.critic.offload, weights, gradients, optimizer)
    return held


def _kept(offload: Offload, weights: float, gradients: float, optimizer: float) -> float:
    parts = ((offload.parameters, weights), (offload.gradients, gradients), (offload.optimizer, optimizer))
    return sum(size for gone, size in parts if not gone)


def rollout_memory(spec: RLJobSpec, shape: Shape) -> RolloutMemory:
    """For one GPU of one server."""
    width, t = BYTES[spec.model.dtype], spec.rollout.tensor_parallel
    servers = max(1, spec.rollout.replicas)
    most = int(spec.rollout.vllm_args.get("max-num-seqs", MAX_SEQUENCES))
    amounts = Amounts.of(spec)
    samples = min(most, -(-amounts.samples_per_step // servers))
    per_token = 2 * width * shape.layers * max(1.0, shape.groups / t) * shape.head
    return RolloutMemory(weights=width * shape.parameters / t, kv_cache=per_token * samples * amounts.longest)
