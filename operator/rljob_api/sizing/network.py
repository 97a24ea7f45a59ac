"""What crosses the network cards of the busiest node at an update of the servers and at the hand-over of a batch, and how long that takes at least.

Update: every part of the policy has one owner among the ranks (`megatron/export.py` in the trainer): what a pipeline stage shares, the first rank of
its first copy; experts, the first rank of their group. An owner sends its part once, through a chain of all servers in pods
of their own, each of which passes on what it receives: no more leaves a node than the policy, however many servers there are. Colocated servers take
it from the first rank of their pod, which every part reaches once.

Batch: rank 0 sends each data-parallel copy its tokens, to the first rank of the copy, which passes them on inside it.

A pod is counted as a node.
"""

import re
from collections import Counter
from dataclasses import dataclass

from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout, rollout_pods
from rljob_api.sizing.shape import BYTES, Shape
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
    found = WRITTEN.fullmatch(text.strip())
    count, bits = (int(found[1] or 1), float(found[2]) * BITS[found[3].lower()]) if found else (0, 0.0)
    if not count * bits:
        raise ValueError("write the bits per second of a node's cards, as 400g, or 8x400g for eight of them")
    return Cards(text.strip().lower(), count, bits / 8)


def owned(spec: RLJobSpec, shape: Shape) -> dict[int, float]:
    """Bytes of the policy that each rank owns and sends, by rank."""
    lay, width, lora = Layout.of(spec, names.ROLE_TRAINER), BYTES[spec.model.dtype], spec.model.lora
    adapters = shape.adapters(lora) if lora and lora.sync == "adapters" else 0
    found = Counter[int]()
    for share in shares(spec, shape):
        first = share.stage * (lay.world // lay.pipeline)
        ends = (share.stage == 0) + (share.stage == lay.pipeline - 1 and not shape.tied)
        tower = shape.tower.parameters() if shape.tower and share.stage == 0 else 0
        common = shape.outside(share.mixed, share.plain) + ends * shape.embedding + tower
        found[first] += round(width * (share.layers * adapters if adapters else common))
        for group in range(0 if adapters or not shape.experts else lay.expert):
            found[first + group * lay.expert_tensor] += round(width * share.mixed * shape.mixed / lay.expert)
    return dict(found)


def update(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a new policy for all servers."""
    if spec.supervised:
        return NOTHING
    by_rank, by_pod = owned(spec, shape), Counter[int]()
    for rank, size in by_rank.items():
        by_pod[rank // spec.trainer.processes_per_node] += round(size)
    whole = float(sum(by_rank.values()))
    if spec.rollout.placement != "colocated":
        passed_on = whole if rollout_pods(spec) > 1 else 0.0
        return Flow(max(passed_on, *by_pod.values()), whole, whole)
    elsewhere = whole - min(by_pod[pod] for pod in range(spec.trainer.nodes))
    return Flow(elsewhere, elsewhere, elsewhere) if len(by_pod) > 1 else NOTHING


def hand_over(spec: RLJobSpec, shape: Shape) -> Flow:
    """Of a step's batch, with every sample at its longest."""
    lay, per_pod, amounts = Layout.of(spec, names.ROLE_TRAINER), spec.trainer.processes_per_node, Amounts.of(spec)
    part = amounts.samples_per_step * sample_bytes(spec, shape) / lay.data
    pods = Counter(copy * lay.tensor * lay.context // per_pod for copy in range(lay.data))
    first = pods.pop(0)
    passed_on = first if lay.pipeline > 1 and spec.trainer.nodes > 1 else 0
    sent = part * (sum(pods.values()) + passed_on)
    return Flow(sent, part * max([passed_on, *pods.values()]), sent)


def sample_bytes(spec: RLJobSpec, shape: Shape) -> int:
    """Bytes of the longest sample in a batch. With router replay each token has the experts that it was routed to, in a byte for each."""
    longest, written = Amounts.of(spec).longest, 0 if spec.supervised else spec.longest_response
    replayed = spec.algorithm.rollout_correction.router_replay == "rollout"
    return TOKEN * longest + LOG_PROB * written + longest * shape.layers * shape.experts_per_token * replayed
