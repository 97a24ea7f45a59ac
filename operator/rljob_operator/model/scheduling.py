"""What a job asks of the `builtin` scheduler, and what it gets: values, without anything that plans."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rljob_api.quantity import Resources, add
from rljob_api.status import PlacementReport
from rljob_operator.kube.api import Key
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang
from rljob_placement.plan import Plan, Stay


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
        found: dict[str, Resources] = {}
        for node, demand in self._newcomers():
            found[node] = add(found.get(node, {}), demand.requests)
        return found

    def fits(self, cluster: Cluster) -> bool:
        """Whether the cluster still has room for the pods that had no node before."""
        nodes, taken = {n.name: n for n in cluster.nodes}, self.taken()
        room = all(n in nodes and _holds(nodes[n], requests) for n, requests in taken.items())
        return room and not any(demand.refuses(nodes[n]) for n, demand in self._newcomers())

    def _newcomers(self) -> Iterator[tuple[str, Demand]]:
        """Node and demand of each."""
        asked = self.request
        stay = list(asked.stay.ranks.values() or asked.stay.trainers)
        for node in self.plan.trainers:
            if node in stay:
                stay.remove(node)
            else:
                yield node, asked.gang.trainer
        for i, node in enumerate(self.plan.rollouts):
            if node and i not in asked.stay.rollouts:
                yield node, asked.gang.rollout


def _holds(node: Node, requests: Resources) -> bool:
    return all(node.free.get(name, 0) >= amount for name, amount in requests.items())
