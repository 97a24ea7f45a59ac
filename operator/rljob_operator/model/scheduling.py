"""What a job asks of the `builtin` scheduler, and what it gets, as values; and the nodes that it avoids, whoever places its pods."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from rljob_api.quantity import Thousandths
from rljob_api.status import JobStatus
from rljob_api.status_parts import NodeStatus, PlacementReport
from rljob_operator.cache.pods import REMEMBERED_SECONDS
from rljob_operator.kube.api import Key
from rljob_operator.times import is_ahead, seconds
from rljob_placement.cluster import Node
from rljob_placement.gang import Gang, Placement, Stay

MOST_NODES = 64
"""Nodes in a status, at most."""


@dataclass(frozen=True, kw_only=True)
class SchedulingRequest:
    """What one job asks for. Equal requests have the same result on the same cluster."""

    job: Key
    uid: str
    created: str
    urgent: bool
    """Whether pods without which the job cannot run lack a node. Otherwise it asks for further rollouts, or for ranks."""
    priority: int
    preempts: bool
    """Whether running jobs of lower priority leave for it."""
    overdue: bool
    """Whether the job has waited for so long that nodes are kept for it."""
    gang: Gang
    current: Mapping[str, str]
    """Node by pod name, for pods that stay on their nodes and for assignments whose pods are on their way."""
    stay: Stay
    excluded: frozenset[str]
    """Nodes that have recently refused a pod of this job."""
    lasts: float | None = None
    """Seconds for which it will hold its nodes, of a job that waits for them; None: not known."""
    uncounted: str = ""
    """Why the devices of its pods cannot be counted, so that it gets no nodes; empty: they can."""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Sort key: urgent requests first, then those of higher priority, then those of older jobs."""
        return (not self.urgent, -self.priority, self.created, self.uid)

    @cached_property
    def signature(self) -> str:
        """Equal for requests of different jobs that have the same plan on the same cluster."""
        return repr((self.gang, self.stay, sorted(self.excluded), self.uncounted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a job that does not fit gets when other jobs have left their nodes."""

    victims: tuple[Key, ...]
    """Jobs that have to leave, besides those that are leaving already."""
    taken: Mapping[str, Thousandths]
    """What nobody else gets meanwhile, by node."""
    starts: float | None = None
    """When that should be free, of a reservation, in seconds since the epoch; None: not known."""


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The answer to a request."""

    request: SchedulingRequest
    plan: Placement
    report: PlacementReport
    claim: Claim | None = None
    until: float | None = None
    """When it should be done with nodes that are reserved for another job, in seconds since the epoch; None: it gets none of these."""

    @property
    def complete(self) -> bool:
        """Whether every pod that was asked for has a node."""
        return not self.plan.problem and all(self.plan.rollouts) and all(self.plan.spares)

    def taken(self) -> dict[str, Thousandths]:
        """What the pods that had no node before request, by node."""
        return self.plan.taken(self.request.gang, self.request.stay)

    def still_fits(self, node: Callable[[str], Node | None]) -> bool:
        """Whether the nodes of the pods that had none before are there, still take these pods, and have room. `node`: what is free on a node, less
        what this result takes."""
        newcomers = self.plan.newcomers(self.request.gang, self.request.stay)
        for name, demand in newcomers:
            there = node(name)
            if there is None or demand.refuses(there):
                return False
        return all(_has_room(node(name), requests) for name, requests in self.taken().items())


def _has_room(node: Node | None, requests: Thousandths) -> bool:
    """Whether no resource that is requested is given away more than once."""
    return node is not None and all(node.free.get(name, -amount) >= 0 for name, amount in requests.items())


def excluded(status: JobStatus, now: float) -> frozenset[str]:
    """Nodes to which none of the job's pods should go. `now`: seconds since the epoch."""
    return frozenset(n.node for n in status.nodes if n.state == "excluded" and (n.quarantine or is_remembered(n, now)))


def is_remembered(entry: NodeStatus, now: float) -> bool:
    """Whether the node's failures still count."""
    return is_ahead(seconds(entry.until), REMEMBERED_SECONDS, now)


def is_bad(entry: NodeStatus, limit: int) -> bool:
    """Whether the job should leave the node. `limit`: spec.scheduling.excludeAfterFailures."""
    return bool(entry.quarantine) or 0 < limit <= len(entry.failures)


def observed(status: JobStatus, quarantined: Mapping[str, str], now: float) -> list[NodeStatus]:
    """The entries of the status, with what is known of their nodes now, and new ones for quarantined nodes. `quarantined`: why, by node."""
    return list(islice(_observed(status, quarantined, now), MOST_NODES))


def _observed(status: JobStatus, quarantined: Mapping[str, str], now: float) -> Iterator[NodeStatus]:
    known = {entry.node for entry in status.nodes}
    for entry in status.nodes:
        remembered = {} if is_remembered(entry, now) else {"failures": [], "cause": "", "until": ""}
        seen = entry.model_copy(update={**remembered, "quarantine": quarantined.get(entry.node, "")})
        if seen.failures or seen.quarantine:
            yield seen
    yield from (NodeStatus(node=node, quarantine=why) for node, why in sorted(quarantined.items()) if node not in known)
