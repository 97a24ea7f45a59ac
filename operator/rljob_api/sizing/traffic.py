"""Bytes that each communicator moves per step, from the spec and the model's size: what placement weighs.

Per step, T tokens are trained on (every sample at its longest, times `epochsPerStep`), of which a data-parallel copy of the model has T/d; h is the
hidden size, b the bytes of an activation, t, c, e, d, p the parallel sizes. Sent by one rank to its neighbour on a ring, or between two stages:

    TP  8 b h T/(d c) (t-1)/t per layer: four all-reduces per layer (or all-gathers and reduce-scatters, with sequence parallelism), each of
        2 (t-1)/t of its size (Shoeybi et al. arXiv 1909.08053 section 3, Korthikanti et al. arXiv 2205.05198 section 4.2.2; ring: Patarasuk 2009)
    CP  keys and values go round forward; they and their gradients backward: 3 x 2 b g k T/(d c) (c-1)/t per layer (Liu et al. arXiv 2310.01889;
        g groups of k channels)
    EP  four all-to-all (dispatch and combine, both ways): 4 b h topk T/(d c t) per layer, 1/e of it to each member (Lepikhin et al. arXiv 2006.16668)
    DP  per optimizer step a reduce-scatter of float32 gradients and an all-gather of parameters: (4 + b) P (d-1)/d, P the rank's own parameters
        (Rajbhandari et al. arXiv 1910.02054 section 7; megatron-core distributed optimizer); experts have their own group, of size world/(p e te);
        with LoRA P are the adapters' parameters alone
    PP  activations forward and gradients backward between neighbour stages: 2 b h T/(d c), 1/t of it per rank with sequence parallelism; once for
        each virtual stage (Narayanan et al. arXiv 2104.04473 section 2.2)
    weights  b x all parameters from rank 0 through the rollouts, one after another (a pipelined broadcast), with those of a draft that learns; with
        adapters alone, theirs
    columns  between rank 0 and another gang's: 8 bytes for the id of a token there, and 4 for its value back

Forward passes without a backward pass (old and reference log-probabilities) add half of the TP, EP and PP bytes and a third of the CP bytes each.
The gang of a frozen model runs one of them, and nothing else; a critic's also trains.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rljob_api import names
from rljob_api.sizing import guessing
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.sizing.replica import serves_snapshots
from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec

TrafficKind = Literal["tensor", "context", "expert", "data", "pipeline", "weights", "columns"]
GRADIENT = 4
"""Bytes of a gradient."""
COLUMN = 8 + 4
"""Bytes of a token's id, and of what a model says of it."""


@dataclass(frozen=True, slots=True)
class Link:
    """Two pods that exchange bytes. A gang's pods count from 0 by node rank. After the trainer's come the rollouts, and after those of another gang
    the trainer's pod of rank 0."""

    kind: TrafficKind
    one: int
    other: int
    bytes: float
    """Bytes per step from one to the other."""


@dataclass(frozen=True, slots=True)
class TrafficBytes:
    """Bytes per step that one rank sends to one neighbour."""

    tensor: float
    context: float
    expert: float
    data: float
    expert_data: float
    pipeline: float
    weights: float
    """Bytes of a sync of the rollouts, from one pod to the next."""

    @staticmethod
    def of(spec: RLJobSpec, shape: Shape, role: str, trainings: float, forwards: float) -> "TrafficBytes":
        """The volumes of the gang that holds the role's model. It makes this many passes over the step's tokens: `trainings` with a backward pass,
        `forwards` without."""
        lay, width = Layout.of(spec, role), BYTES[spec.model.dtype]
        t, c, e, p = lay.tensor, lay.context, lay.expert, lay.pipeline
        tokens = _tokens(spec) / (lay.data * c)
        layers = shape.layers / p
        both, ring = trainings + forwards / 2, trainings + forwards / 3
        own = layers * shape.dense / t + 2 * shape.embedding / (t * p)
        experts = layers * shape.expert / (e * lay.expert_tensor)
        if spec.adapters and role == names.ROLE_TRAINER:
            own, experts = layers * shape.adapters(spec.adapters) / t, 0.0
        updates = Amounts.of(spec).updates * trainings
        copies = lay.data * c
        exchange = GRADIENT + width
        cut = t if spec.ranks_of(role).parallelism.sequence else 1
        return TrafficBytes(
            tensor=8 * width * shape.hidden * tokens * (t - 1) / t * layers * both,
            context=3 * width * shape.keys_and_values / t * tokens * (c - 1) * layers * ring,
            expert=4 * width * shape.hidden * shape.experts_per_token * tokens / t / e * layers * both,
            data=updates * exchange * own * (copies - 1) / copies,
            expert_data=updates * exchange * experts * (lay.expert_copies - 1) / lay.expert_copies,
            pipeline=2 * width * shape.hidden * tokens / cut * lay.virtual_pipeline * both,
            weights=_sent(spec, shape),
        )


def _sent(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of a sync of the rollouts. One A of several matrices is sent for each of them, which is left out here."""
    lora, width = spec.model.lora, BYTES[spec.model.dtype]
    if serves_snapshots(spec):
        return 0.0
    if lora and lora.sync == "adapters":
        return float(width * shape.layers * shape.adapters(lora))
    return width * (shape.parameters + guessing.multi_token(spec, shape)) + guessing.draft_bytes(spec, shape)


def _tokens(spec: RLJobSpec) -> float:
    amounts = Amounts.of(spec)
    return float(amounts.samples_per_step * amounts.longest * spec.train.epochs_per_step)


def forward_passes(spec: RLJobSpec) -> float:
    """Passes of the trainer over the step's tokens without a backward pass, per pass with one."""
    old = 0 if spec.supervised or Amounts.of(spec).updates == 1 else 1
    passes = old + (spec.has_reference and names.ROLE_REFERENCE not in spec.gangs)
    return passes / spec.train.epochs_per_step


def links(spec: RLJobSpec, shape: Shape, rollouts: int) -> list[Link]:
    """Pairs of pods that exchange bytes, each pair once per communicator; what stays inside a pod is left out."""
    volumes = TrafficBytes.of(spec, shape, names.ROLE_TRAINER, 1, forward_passes(spec))
    chain = [0, *range(spec.trainer.nodes, spec.trainer.nodes + rollouts)]
    return _pod_links(spec, volumes, names.ROLE_TRAINER) + [
        Link("weights", a, b, volumes.weights) for a, b in itertools.pairwise(chain)
    ]


def gang_links(spec: RLJobSpec, shape: Shape, role: str) -> list[Link]:
    """The same of the gang of another model, with the edge to the trainer. The critic learns, the others are frozen."""
    passes = 1 / spec.train.epochs_per_step
    columns = Link("columns", 0, spec.ranks_of(role).nodes, COLUMN * _tokens(spec) * passes)
    volumes = TrafficBytes.of(spec, shape, role, int(role == names.ROLE_CRITIC), passes)
    return [*_pod_links(spec, volumes, role), columns]


def _pod_links(spec: RLJobSpec, volumes: TrafficBytes, role: str) -> list[Link]:
    """Between the pods of a gang."""
    per_pod, volume_of = spec.ranks_of(role).processes_per_node, dict[tuple[TrafficKind, int, int], float]()
    for kind, a, b, volume in _rank_links(Layout.of(spec, role), volumes):
        one, other = sorted((a // per_pod, b // per_pod))
        if one != other and volume:
            volume_of[kind, one, other] = volume_of.get((kind, one, other), 0.0) + volume
    return [Link(k, a, b, v) for (k, a, b), v in volume_of.items()]


def _rank_links(layout: Layout, v: TrafficBytes) -> Iterator[tuple[TrafficKind, int, int, float]]:
    """Megatron-core numbers ranks tensor first, then context, data and pipeline (parallel_state.py, order `tp-cp-ep-dp-pp`); expert groups are cut
    out of one stage's ranks: expert tensor first, then expert, then the copies."""
    t, c, p, stage = layout.tensor, layout.context, layout.pipeline, layout.world // layout.pipeline
    for first in range(0, layout.world, stage):
        ranks = list(range(first, first + stage))
        yield from _rings("tensor", ranks, 1, t, v.tensor)
        yield from _rings("context", ranks, t, c, v.context)
        yield from _rings("data", ranks, t, stage // t, v.data)
        te, e = layout.expert_tensor, layout.expert
        if v.expert_data:
            yield from _rings("data", ranks, te * e, stage // (te * e), v.expert_data)
        if v.expert and e > 1:
            yield from _all_pairs("expert", ranks, te, e, v.expert)
    for rank in range(layout.world):
        last = rank >= layout.world - stage
        if not last:
            yield "pipeline", rank, rank + stage, v.pipeline
        elif p > 2 and layout.virtual_pipeline > 1:
            yield "pipeline", rank, rank - (p - 1) * stage, v.pipeline


def _groups(ranks: list[int], stride: int, size: int) -> Iterator[list[int]]:
    """Groups of `size` ranks that are `stride` apart."""
    block = stride * size
    for first in range(0, len(ranks) - block + 1, block):
        for offset in range(stride):
            yield ranks[first + offset : first + block : stride]


def _rings(
    kind: TrafficKind, ranks: list[int], stride: int, size: int, volume: float
) -> Iterator[tuple[TrafficKind, int, int, float]]:
    """A ring of two has one pair, over which both directions go; longer ones as many pairs as members."""
    for group in _groups(ranks, stride, size) if size > 1 else ():
        yield from ((kind, a, b, volume) for a, b in zip(group, [*group[1:], group[0]], strict=True))


def _all_pairs(
    kind: TrafficKind, ranks: list[int], stride: int, size: int, volume: float
) -> Iterator[tuple[TrafficKind, int, int, float]]:
    for group in _groups(ranks, stride, size):
        yield from ((kind, a, b, volume) for a, b in itertools.permutations(group, 2))
