"""What a job asks of the `builtin` scheduler, and what it gets, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.quantity import Resources
from rljob_api.status import PlacementReport
from rljob_operator.kube.api import Key
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Gang
from rljob_placement.nodes import Plan, Stay


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingRequest:
    """What one job asks for. Equal requests have the same result on the same cluster."""

    job: Key
    uid: str
    created: str
    urgent: bool
    """Whether pods without which the job cannot run lack a node. Otherwise it asks for further rollouts, or for ranks."""
    priority: int
    gang: Gang
    current: Mapping[str, str]
    """Node by pod name, for pods that stay on their nodes and for assignments whose pods are on their way."""
    stay: Stay
    excluded: frozenset[str]
    """Nodes that have recently refused a pod of this job."""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Sort key: urgent requests first, then those of higher priority, then those of older jobs."""
        return (not self.urgent, -self.priority, self.created, self.uid)


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The answer to a request."""

    request: SchedulingRequest
    plan: Plan
    report: PlacementReport

    @property
    def complete(self) -> bool:
        """Whether every pod that was asked for has a node."""
        return not self.plan.problem and all(self.plan.rollouts)

    def taken(self) -> dict[str, Resources]:
        """What the pods that had no node before request, by node."""
        return self.plan.taken(self.request.gang, self.request.stay)

    def fits(self, cluster: Cluster) -> bool:
        """Whether the pods that had no node before still fit into the cluster."""
        nodes, taken = {n.name: n for n in cluster.nodes}, self.taken()
        enough = all(n in nodes and _holds(nodes[n], requests) for n, requests in taken.items())
        newcomers = self.plan.newcomers(self.request.gang, self.request.stay)
        return enough and not any(demand.refuses(nodes[n]) for n, demand in newcomers)


def _holds(node: Node, requests: Resources) -> bool:
    return all(node.free.get(name, 0) >= amount for name, amount in requests.items())
