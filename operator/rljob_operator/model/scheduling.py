"""What a job asks of the `builtin` scheduler, and what it gets: values, without anything that plans."""

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
    """What one job asks for. Two are equal if the answer to one is the answer to the other."""

    job: Key
    uid: str
    created: str
    urgent: bool
    """Trainers, or rollouts of the minimum, have no node; otherwise further rollouts, or ranks."""
    priority: int
    gang: Gang
    current: Mapping[str, str]
    """Nodes by pod: of pods that stay where they are, and of assignments whose pods are on their way."""
    stay: Stay
    excluded: frozenset[str]
    """Nodes that did not take a pod of this job."""

    @property
    def order(self) -> tuple[bool, int, str, str]:
        """Sorts: urgent first, then by priority, then by age."""
        return (not self.urgent, -self.priority, self.created, self.uid)


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The answer to a request."""

    request: SchedulingRequest
    plan: Plan
    report: PlacementReport

    @property
    def complete(self) -> bool:
        """Nothing that was asked for is missing."""
        return not self.plan.problem and all(self.plan.rollouts)

    def taken(self) -> dict[str, Resources]:
        """By node: what pods request that had no node before."""
        return self.plan.taken(self.request.gang, self.request.stay)

    def fits(self, cluster: Cluster) -> bool:
        """Whether the cluster still has room for the pods that had no node before."""
        nodes, taken = {n.name: n for n in cluster.nodes}, self.taken()
        room = all(n in nodes and _holds(nodes[n], requests) for n, requests in taken.items())
        newcomers = self.plan.newcomers(self.request.gang, self.request.stay)
        return room and not any(demand.refuses(nodes[n]) for n, demand in newcomers)


def _holds(node: Node, requests: Resources) -> bool:
    return all(node.free.get(name, 0) >= amount for name, amount in requests.items())
