"""What crosses the network cards of the busiest node at a sync, which takes a new policy to the servers, and at the hand-over of a batch, and
how long that takes at least.

Sync: every part of the policy has one owner among the ranks (`megatron/export.py` in the trainer): what a pipeline stage shares, the first rank of
its first copy; experts, the first rank of their group; a draft that learns, rank 0. An owner sends its part once, through a chain of all servers in
pods of their own, each of which passes on what it receives: no more leaves a node than the policy, however many servers there are. A worker receives
no tensors that it does not have: those of other pipeline stages, and with `expertParallel` experts of other workers. Of matrices that
tensor-parallel workers divide, it receives its own slice. Of a service, rank 0 sends whole models; adapters are read from the volume.

Sync of colocated servers: where each pod has a whole copy of the model, it exports that to its servers, and nothing crosses a card. Where a copy is
spread over pods, every rank gathers the whole policy (`Exporter.tensors`), and the first of a pod passes it to the pod's servers. The
stages of each copy then broadcast to each other what they have, every rank its shard, so that the stages which a pod does not have reach it
once for each of its copies. Ranks then exchange their shards, over the network only where a group of experts is larger than a pod.

Batch: rank 0 sends each data-parallel copy its tokens, to the first rank of the copy, which passes them on inside it.

Generation: what a server of several pods exchanges between them for all tokens of a step (replica.py).

A pod is counted as a node.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from rljob_api import names
from rljob_api.sizing import guessing
from rljob_api.sizing.layout import Amounts, Layout, rollout_pods, wanted_servers
from rljob_api.sizing.replica import layers, on_ranks, sent_per_token, serves_snapshots
from rljob_api.sizing.shape import BYTE_EXPERTS, BYTES, Shape
from rljob_api.sizing.stage import shares
from rljob_api.spec import RLJobSpec

TOKEN, LOG_PROB = 4, 4
"""Bytes of the id of a token in a batch, and of the log-probability of one that the policy wrote."""
WRITTEN = re.compile(r"(?:(\d{1,2})x)?(\d{1,5}(?:\.\d{1,3})?)([gt])", re.IGNORECASE)
BITS = {"g": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True)
class Cards:
    """The network cards of a node."""

    text: str
    """As users write them: `400g` is one of 400 Gbit/s, `8x400g` are eight."""
    count: int
    card: float
    """Bytes per second and direction of one of them."""

    @property
    def rate(self) -> float:
        return self.count * self.card


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes between nodes."""

    sent: float
    """Out of the node that sends most."""
    received: float
    """Into the node that receives most."""
    one: float
    """Through the rank that sends or receives most: its bytes go through one card."""

    def seconds(self, cards: Cards) -> float:
        """At least, at the rate of the cards."""
        return max(self.sent / cards.rate, self.received / cards.rate, self.one / cards.card)


NOTHING = Flow(0.0, 0.0, 0.0)


def cards(text: str) -> Cards:
    """Raises ValueError."""
    match = WRITTEN.fullmatch(text.strip())
    count, bits = (int(match[1] or 1), float(match[2]) * BITS[match[3].lower()]) if match else (0, 0.0)
    if not count * bits:
        raise ValueError("write the bits per second of a node's cards, as 400g, or 8x400g for eight of them")
    return Cards(text.strip().lower(), count, bits / 8)


def owned(spec: RLJobSpec, shape: Shape) -> dict[int, float]:
    """Bytes of the policy that each rank owns and sends, by rank."""
    lay, sizes = Layout.of(spec, names.ROLE_TRAINER), Counter[int]()
    if spec.task == "service":
        return {0: round(sum(part.common + part.experts for part in _parts(spec, shape).values()))}
    for stage, part in _parts(spec, shape).items():
        first = stage * (lay.world // lay.pipeline)
        sizes[first] += round(part.common)
        for group in range(lay.expert if part.experts else 0):
            sizes[first + group * lay.expert_tensor] += round(part.experts / lay.expert)
    return dict(sizes)


class _Part(NamedTuple):
    """Bytes of a stage."""

    common: float
    """Of what its ranks share."""
    experts: float


def _parts(spec: RLJobSpec, shape: Shape) -> dict[int, _Part]:
    """What is sent of each pipeline stage."""
    lay, width, lora = Layout.of(spec, names.ROLE_TRAINER), BYTES[spec.model.dtype], spec.model.lora
    if lora and lora.sync == "adapters":
        layer = width * shape.adapters(lora)
        return {share.stage: _Part(share.layers * layer, 0.0) for share in shares(spec, shape)}
    parts = {}
    for share in shares(spec, shape):
        ends = (share.stage == 0) + (share.stage == lay.pipeline - 1 and not shape.tied)
        tower = shape.tower.parameters() if shape.tower and share.stage == 0 else 0
        common = share.outside(shape) + ends * shape.embedding + tower
        parts[share.stage] = _Part(width * common, width * share.mixed * shape.mixed if shape.experts else 0.0)
    first = parts[0]
    return parts | {0: first._replace(common=first.common + guessing.draft_bytes(spec, shape))}


def sync(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a new policy for all servers."""
    if not wanted_servers(spec) or serves_snapshots(spec):
        return NOTHING
    if spec.rollout.placement == "colocated":
        return _broadcast(spec, shape)
    by_rank, by_pod = owned(spec, shape), Counter[int]()
    for rank, size in by_rank.items():
        by_pod[rank // spec.trainer.processes_per_node] += round(size)
    arriving = _arriving(spec, shape)
    several = rollout_pods(spec) > spec.rollout.nodes
    passed_on = arriving.pod if several else arriving.shared if rollout_pods(spec) > 1 else 0.0
    return Flow(max(passed_on, *by_pod.values()), arriving.pod, max(arriving.worker, *by_rank.values()))


class _Arriving(NamedTuple):
    """Bytes of a sync that a server receives."""

    pod: float
    """In the pod that receives most, however many of its workers need a tensor."""
    worker: float
    """In the worker that receives most."""
    shared: float
    """Of the pod's, what other pods of the same server receive as well."""


def _arriving(spec: RLJobSpec, shape: Shape) -> _Arriving:
    parts, servers, end = _parts(spec, shape).values(), spec.rollout, BYTES[spec.model.dtype] * shape.embedding
    common, experts = sum(part.common for part in parts), sum(part.experts for part in parts)
    if spec.model.lora and spec.model.lora.sync == "adapters":
        return _Arriving(common, common, common)
    here, t, stages = servers.processes_per_pod, servers.tensor_parallel, servers.pipeline_parallel
    stage, in_pod = layers(servers, shape) / shape.layers, min(stages, max(1, here // t))
    of_layers = common - end * (1 if shape.tied else 2)
    ends = common - of_layers if in_pod == stages else end
    layers_here, share = min(1.0, in_pod * stage) * of_layers, experts * stage / (t * servers.data_parallel)

    def of_ranks(count: int) -> float:
        return layers_here * on_ranks(shape, t, count) + ends * count / t

    pod = of_ranks(min(here, t)) + min(experts, share * here)
    worker = stage * of_layers * on_ranks(shape, t, 1) + (end if stages > 1 else ends) / t + share
    of_copies = of_ranks(min(here, t)) if servers.data_parallel > 1 else 0.0
    return _Arriving(pod, worker, max(of_copies, layers_here * (on_ranks(shape, t, min(here, t)) - min(here, t) / t)))


def generation(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a server's pods while they generate the samples of a step, prompts included."""
    if spec.supervised:
        return NOTHING
    amounts = Amounts.of(spec)
    tokens = amounts.samples_per_step * amounts.longest / max(1, wanted_servers(spec))
    sent, one = sent_per_token(spec.rollout, shape, BYTES[spec.model.dtype])
    return Flow(tokens * sent, tokens * sent, tokens * one)


def _broadcast(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a sync of colocated servers. No pod sends more than what the pod with the smallest stages receives: it passes on all but one stage."""
    lay, per_pod, parts = Layout.of(spec, names.ROLE_TRAINER), spec.trainer.processes_per_node, _parts(spec, shape)
    of_stage = lay.world // lay.pipeline
    ranks = min(per_pod, of_stage)
    stages = {(pod * per_pod // of_stage, ((pod + 1) * per_pod - 1) // of_stage) for pod in range(spec.trainer.nodes)}
    most = one = 0.0
    for sizes, shards in (
        ({stage: part.common for stage, part in parts.items()}, lay.tensor),
        ({stage: part.experts for stage, part in parts.items()}, lay.expert * lay.expert_tensor),
    ):
        own = min(sum(sizes.get(stage, 0.0) for stage in range(first, last + 1)) for first, last in stages)
        missing = sum(sizes.values()) - own * min(1.0, ranks / shards)
        received = missing * max(1.0, ranks / shards)
        most += received
        one += received / ranks if ranks >= shards else received
    return Flow(most, most, one)


def hand_over(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a step's batch, with every sample at its longest. A service has no steps of its own."""
    if spec.evaluation.only or spec.task == "service":
        return NOTHING
    lay, per_pod, amounts = Layout.of(spec, names.ROLE_TRAINER), spec.trainer.processes_per_node, Amounts.of(spec)
    part = amounts.samples_per_step * sample_bytes(spec, shape) / lay.data
    pods = Counter(copy * lay.tensor * lay.context // per_pod for copy in range(lay.data))
    first = pods.pop(0)
    passed_on = first if lay.pipeline > 1 and spec.trainer.nodes > 1 else 0
    sent = part * (sum(pods.values()) + passed_on)
    return Flow(sent, part * max([passed_on, *pods.values()]), sent)


def sample_bytes(spec: RLJobSpec, shape: Shape) -> int:
    """Bytes of the longest sample in a batch. With router replay each token has the experts that it was routed to, in a byte for each, or two
    in a model with many."""
    longest, written = Amounts.of(spec).longest, 0 if spec.supervised else spec.longest_response
    replayed = spec.algorithm.rollout_correction.router_replay == "rollout"
    index = 1 if shape.experts <= BYTE_EXPERTS else 2
    return TOKEN * longest + LOG_PROB * written + longest * shape.layers * shape.experts_per_token * index * replayed
