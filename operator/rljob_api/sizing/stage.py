"""What one rank of a pipeline stage holds on its GPU: models with their gradients and optimizers, activations, logits.

With b bytes of a parameter, P the rank's own parameters, d the ranks that share the optimizer's states (data x context parallel):

    weights, gradients, optimizer
        b P, 4 P and (8 + 4 [b < 4]) P/d: bfloat16 6 + 12/d bytes per parameter and float32 8 + 8/d (megatron-core docs, dist_optimizer);
        with LoRA b (P + A), 4 A and (8 + 4 [b < 4]) A/d, with A the rank's part of the adapters' parameters;
        with `offload.update` the optimizer is 12 P/d of host memory for any b, and nothing on the GPU
    activations
        per layer and token b (4 hidden + 2 queries + 2 keys and values + 3 feed-forward) / t, each tensor that a backward pass needs once,
        with experts topk (hidden + 3 feed-forward): each of a token's experts has a copy of it, and shared ones have 3 feed-forward more
        (Korthikanti et al. arXiv 2205.05198 section 4, for SwiGLU, without the attention matrix, which flash attention computes again);
        without sequence parallelism the hidden part is not divided by t; full recomputation keeps the inputs of the layers that are
        computed again together, and has their activations then; of layers whose activations are in host memory (`cpu_offloading`), those of one
        are on their way; a stage holds as many
        micro-batches as there are stages after it, itself included, interleaved (1 + (p-1)/(p v)) times as many (ibid. section 4.2.3);
        the tokens that sparse attention has chosen (sparse_attention.py), which no rank shares; b of each parameter of a layer's experts' first
        two matrices, up to 2^29 bytes: their gradients before these are added to their buffer (the trainer's compat/grouped_products.py)
    vision tower
        whole on every rank; what spec.model.freeze names has weights alone. Activations as if every token were of an image, none of a frozen tower
    logits
        of the last stage: (b + 4) bytes x tokens x vocabulary / t, kept and in float32; of tokens in the loss, which may be all; twice with a layer
        for multi-token prediction, which is one more layer of the last stage, with a copy of the embedding where that is another one
    draft
        EAGLE-3, whole on every rank in float32: 16 bytes of a parameter with gradient and moments

With `momentsDtype: bfloat16` 4 bytes of a parameter that learns less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rljob_api import names
from rljob_api.sizing import guessing
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.sizing.sparse_attention import attends_again, choices, is_shared, layers_kept
from rljob_api.sizing.split import Unsplit, split
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Parallelism
from rljob_api.spec.roles import Offload, RankSettings
from rljob_api.spec.train import Optimizer

FLOAT = 4
"""Bytes of a float32."""

PRODUCTS = 2**29
"""Bytes of gradients of a layer's experts that are held before they are added to their buffer."""

UPDATING = 2**26
"""Bytes of pinned host memory through which gradients and weights of a rank pass with `offload.update` (the trainer's compat/host_adam.py), and
of the memory in which moments are computed with that are kept in bfloat16."""

Part = Literal["parameters", "gradients", "optimizer"]


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """Bytes of one model's parts on a rank. A model that does not learn has only parameters."""

    parameters: float
    gradients: float
    optimizer: float
    offload: Offload
    whole: bool = False
    """Every rank has all of it, and the first one writes it."""
    moments: int = 2 * FLOAT
    """Bytes of both moments of a parameter."""

    def parts(self, *used: Part) -> dict[Part, float]:
        """Bytes on the GPU while the parts `used` are needed: these, and what is not offloaded."""
        parts: tuple[Part, ...] = ("parameters", "gradients", *(() if self.offload.update else ("optimizer",)))
        return {part: getattr(self, part) for part in parts if part in used or not getattr(self.offload, part)}

    def held(self, *used: Part) -> float:
        """Their sum."""
        return sum(self.parts(*used).values())

    @property
    def moved(self) -> float:
        """Bytes that wait in host memory while the model rests. Gradients are not kept."""
        return self.offload.parameters * self.parameters + self.offload.optimizer * self.optimizer

    @property
    def updated(self) -> float:
        """Bytes of the optimizer that host memory has at any time."""
        return self.offload.update * self.optimizer

    @property
    def on_host(self) -> float:
        """Bytes of host memory."""
        pieces = UPDATING * (1 if self.moments == 2 * FLOAT else 2)  # narrower moments are computed with in float32
        return self.moved + self.updated + self.offload.update * pieces

    @property
    def updated_parameters(self) -> float:
        """Of which optimizer steps are taken on the host."""
        return self.updated / (FLOAT + self.moments)


def held_by(networks: Sequence[ModelBytes], busy: ModelBytes | None = None, *used: Part) -> float:
    """Bytes on the GPU of all models, while one of them (`busy`) needs the parts `used`."""
    return sum(n.held(*used) if n is busy else n.held() for n in networks)


@dataclass(frozen=True, slots=True)
class StageLayers:
    """The layers of one pipeline stage."""

    stage: int
    mixed: float
    """Layers with experts."""
    plain: float
    """Layers without."""
    further: int = 0
    """Of them, those for multi-token prediction."""

    @property
    def layers(self) -> float:
        return self.mixed + self.plain

    def outside(self, shape: Shape) -> float:
        """Parameters outside experts, with what joins two vectors for a layer for multi-token prediction."""
        return shape.outside(self.mixed, self.plain) + self.further * guessing.joining(shape)


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of a pipeline stage."""

    networks: list[ModelBytes]
    """The policy first."""
    forward: float
    """Activations of a forward pass alone, of one micro-batch: those of one layer, and what layers take from earlier ones."""
    activations: float
    """Activations of all layers and micro-batches that wait for their backward pass."""
    logits: float

    @property
    def passing(self) -> float:
        """Bytes of a forward and backward pass."""
        return self.activations + self.logits


def stages(spec: RLJobSpec, shape: Shape) -> list[Stage]:
    """Of the trainer's ranks, those that `fullest` chooses."""
    every = fullest(spec, shape)
    return [Stage(_networks(spec, shape, share), *passes(spec, shape, share, names.ROLE_TRAINER)) for share in every]


def shares(spec: RLJobSpec, shape: Shape, role: str = names.ROLE_TRAINER) -> list[StageLayers]:
    """Of every stage of the ranks that hold the role's model. Where the layers do not divide, as they may not if the model is another one than rules
    have seen, of the first and the last stage, in equal parts."""
    lay = Layout.of(spec, role)
    plain = shape.dense_layers if shape.experts else shape.layers
    try:
        cut = split(shape.layers, lay.pipeline, lay.virtual_pipeline, spec.ranks_of(role).transformer_config)
    except Unsplit:
        equal = (shape.layers - plain) / lay.pipeline, plain / lay.pipeline
        found = [StageLayers(stage, *equal) for stage in sorted({0, lay.pipeline - 1})]
    else:
        counts = zip(cut.stages, cut.leading(plain), strict=True)
        found = [StageLayers(stage, layers - first, first) for stage, (layers, first) in enumerate(counts)]
    if spec.model.multi_token_prediction and role == names.ROLE_TRAINER:
        found[-1] = _with_further(found[-1], shape, 1)
    return found


def _with_further(stage: StageLayers, shape: Shape, further: int) -> StageLayers:
    """With so many layers for multi-token prediction, which are like the last one before them."""
    more = further - stage.further
    if shape.experts:
        return replace(stage, mixed=stage.mixed + more, further=further)
    return replace(stage, plain=stage.plain + more, further=further)


def fullest(spec: RLJobSpec, shape: Shape, role: str = names.ROLE_TRAINER) -> list[StageLayers]:
    """Stages of which one holds most: the last, and of those with the same layers the first, which waits for the most backward passes."""
    every = shares(spec, shape, role)
    first = {(share.mixed, share.plain): share for share in reversed(every)}
    return sorted({*first.values(), every[-1]}, key=lambda share: share.stage)


def operations(spec: RLJobSpec, shape: Shape) -> list[float]:
    """Of every stage, in a forward pass over the longest sample: its layers and, in the last one, the output layer, which the layer for multi-token
    prediction passes through once more."""
    longest, work = Amounts.of(spec).longest, shape.work
    output = 2 * shape.embedding * longest
    layer = (work.of(longest) - output) / shape.layers
    of_stages = shares(spec, shape)
    every = [share.layers * layer for share in of_stages]
    return [*every[:-1], every[-1] + output * (1 + of_stages[-1].further)]


def passes(spec: RLJobSpec, shape: Shape, share: StageLayers, role: str) -> tuple[float, float, float]:
    """Bytes of a pass over the ranks that hold the role's model: activations of a forward pass and of all that wait, and logits, as in Stage."""
    ranks, lay, width = spec.ranks_of(role), Layout.of(spec, role), BYTES[spec.model.dtype]
    tokens = ranks.tokens_per_micro_batch / lay.context
    layer = tokens * _layer(ranks.parallelism, shape, width)
    passed = tokens * width * shape.hidden / _cut(ranks.parallelism)
    whole, inputs, again = _kept(ranks, share.layers)
    chosen, shared = tokens * choices(spec, shape), is_shared(shape)
    kept = share.layers if shared else layers_kept(ranks.recompute, share.layers, whole)
    waiting = (whole * layer + inputs * passed + kept * chosen) * _in_flight(lay, share.stage)
    chosen_again = 0.0 if shared else max(again, float(attends_again(ranks.recompute))) * chosen
    activations = waiting + again * layer + chosen_again + tokens * width * _seen(spec, shape)
    activations += _products(spec, shape, lay, width) if share.mixed else 0.0
    forward = layer + (share.layers if shared else 1) * chosen
    last = share.stage == lay.pipeline - 1
    logits = (width + FLOAT) * tokens * _outputs(spec, shape, lay) / lay.tensor if last else 0.0
    return forward, activations, logits * (1 + share.further)


def _products(spec: RLJobSpec, shape: Shape, lay: Layout, width: int) -> float:
    """Bytes of gradients that are made at once of a layer's experts; 0: they learn nothing, or one by one."""
    if spec.adapters or width == FLOAT:
        return 0.0
    return min(PRODUCTS, 2 / 3 * width * shape.mixed / (lay.expert * lay.expert_tensor))


def _outputs(spec: RLJobSpec, shape: Shape, lay: Layout) -> float:
    """Numbers that the last layer makes of a token: a logit for each word, or a reward model's score, which tensor-parallel ranks do not share."""
    return lay.tensor if spec.task == "rewardModel" else shape.vocabulary


def own_parameters(shape: Shape, lay: Layout, share: StageLayers) -> tuple[float, float]:
    """A rank's dense parameters and its experts'. A tied output layer is a second copy of the embedding when stages are apart, and the layer for
    multi-token prediction has one then."""
    ends = (share.stage == 0) + (share.stage == lay.pipeline - 1)
    tables = 1 if shape.tied and lay.pipeline == 1 else ends
    tables += share.further * (lay.pipeline > 1)
    dense = (share.outside(shape) + tables * shape.embedding) / lay.tensor
    return dense, share.mixed * shape.mixed / (lay.expert * lay.expert_tensor)


def _layer(sizes: Parallelism, shape: Shape, width: int) -> float:
    """Bytes of activations per token and layer."""
    wide = 3 * shape.feed_forward
    if shape.experts:
        wide = shape.experts_per_token * (shape.hidden + 3 * shape.expert_feed_forward) + 3 * shape.shared_feed_forward
    return width * (4 * shape.hidden / _cut(sizes) + (shape.attended + wide) / sizes.tensor)


def _seen(spec: RLJobSpec, shape: Shape) -> int:
    """Numbers of a token of an image that the tower keeps for its backward pass."""
    return shape.tower.kept if shape.tower and "vision" not in spec.model.freeze else 0


def _cut(sizes: Parallelism) -> int:
    """Tensor-parallel ranks that share the activations between the matrices."""
    return sizes.tensor if sizes.sequence else 1


def _kept(ranks: RankSettings, layers: float) -> tuple[float, float, float]:
    """How recomputation changes a stage: per micro-batch, the number of layers that keep all activations and the number of inputs that are kept
    instead; and the number of layers that are computed again at a time."""
    r = ranks.recompute
    if r.granularity != "full":
        away = min(layers, _in_host_memory(ranks.transformer_config))
        return layers - away, 0.0, 1.0 if away else 0.0
    if r.method == "uniform":
        return 0.0, layers / r.layers, r.layers
    inputs = min(layers, r.layers * ranks.parallelism.virtual_pipeline)
    return layers - inputs, inputs, 1.0


def _in_host_memory(transformer_config: Mapping[str, Any]) -> int:
    """Layers whose activations megatron-core keeps there."""
    wanted = transformer_config.get("cpu_offloading") and transformer_config.get("cpu_offloading_activations", True)
    layers = transformer_config.get("cpu_offloading_num_layers", 0)
    return layers if wanted and isinstance(layers, int) else 0


def _in_flight(lay: Layout, stage: int) -> float:
    """Micro-batches whose activations a stage holds at a time."""
    if lay.virtual_pipeline > 1:
        return (lay.pipeline - stage) * (1 + (lay.pipeline - 1) / (lay.pipeline * lay.virtual_pipeline))
    return lay.pipeline - stage


def _networks(spec: RLJobSpec, shape: Shape, share: StageLayers) -> list[ModelBytes]:
    """The models that share the policy's ranks. A reference in host memory takes the policy's place on the GPU, and is not counted."""
    lay, width = Layout.of(spec, names.ROLE_TRAINER), BYTES[spec.model.dtype]
    tower = shape.tower.parameters() if shape.tower else 0
    learnt = shape.tower.parameters(tuple(spec.model.freeze)) if shape.tower else 0

    def trained(layers: StageLayers, optimizer: Optimizer) -> ModelBytes:
        dense, experts = own_parameters(shape, lay, layers)
        return trained_network(spec, lay, optimizer, width * (tower - learnt), dense + learnt, experts)

    adam, offload = spec.train.optimizer, spec.trainer.offload
    alone = _with_further(share, shape, 0)  # only the policy predicts further
    weights = trained(alone, adam).parameters
    policy = trained(share, adam)
    if spec.adapters:
        adapters = shape.adapters(spec.adapters) * share.layers / lay.tensor
        policy = trained_network(spec, lay, adam, weights, adapters, 0.0)
    if spec.evaluation.only:
        policy = ModelBytes(policy.parameters, 0.0, 0.0, Offload())
        offload = Offload(parameters=offload.parameters)
    networks = [_offloaded(policy, offload, adam, width)]
    if spec.critic and names.ROLE_CRITIC in spec.shared:
        c = spec.critic
        networks.append(_offloaded(trained(alone, c.optimizer), c.offload, c.optimizer, width))
    if names.ROLE_REFERENCE in spec.shared and not spec.reference.offload:
        networks.append(ModelBytes(weights, 0.0, 0.0, Offload()))
    draft = FLOAT * guessing.draft(spec, shape)
    if draft:
        networks.append(ModelBytes(draft, draft, 2 * draft, Offload(), whole=True))
    scorers = [r.model for i, r in enumerate(spec.rewards) if r.model and names.reward_role(i) in spec.shared]
    return networks + [ModelBytes(weights, 0.0, 0.0, Offload(parameters=scorer.offload)) for scorer in scorers]


def _offloaded(network: ModelBytes, offload: Offload, adam: Optimizer, width: int) -> ModelBytes:
    """On the host a weight of float32, too, has a copy."""
    copies = FLOAT / adam.moments_bytes if offload.update and width == FLOAT else 0
    return replace(network, offload=offload, optimizer=network.optimizer * (1 + copies), moments=adam.moments_bytes)


def trained_network(
    spec: RLJobSpec, lay: Layout, adam: Optimizer, frozen: float, dense: float, experts: float
) -> ModelBytes:
    """A model with these numbers of parameters that learn; `frozen`: bytes of those that do not."""
    width, own = BYTES[spec.model.dtype], dense + experts
    states = _states(adam, width) * (dense / (lay.data * lay.context) + experts / lay.expert_copies)
    return ModelBytes(frozen + width * own, FLOAT * own, states, Offload())


def saved_draft(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of a draft in a checkpoint: weights and both moments, in float32; 0: none is trained."""
    return 3 * FLOAT * guessing.draft(spec, shape)


def _states(adam: Optimizer, width: int) -> int:
    """Bytes of a parameter's moments and, below float32, its main weight."""
    return adam.moments_bytes + (FLOAT if width < FLOAT else 0)
