"""Who gets what: one job after the other, each with what those before it left. All or nothing, so nobody waits half-placed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.placement.cluster import Cluster, Node
from rljob_api.placement.gang import Demand
from rljob_api.placement.plan import Plan, plan
from rljob_api.placement.quantity import Resources, add
from rljob_api.placement.report import report
from rljob_api.status import PlacementReport
from rljob_operator.placement.asked import Asked

EXCLUDED = "lately did not take a pod of this job"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to what a job asked."""

    asked: Asked
    plan: Plan
    report: PlacementReport

    @property
    def complete(self) -> bool:
        """Nothing that was asked for is missing."""
        return not self.plan.problem and all(self.plan.rollouts)

    def taken(self) -> dict[str, Resources]:
        """By node, what pods request that have no home yet."""
        found: dict[str, Resources] = {}
        for node, demand in self._newcomers():
            found[node] = add(found.get(node, {}), demand.requests)
        return found

    def fits(self, cluster: Cluster) -> bool:
        """Whether the cluster still has room for those who have no home yet."""
        nodes, taken = {n.name: n for n in cluster.nodes}, self.taken()
        room = all(n in nodes and _holds(nodes[n], requests) for n, requests in taken.items())
        return room and not any(demand.refuses(nodes[n]) for n, demand in self._newcomers())

    def _newcomers(self) -> Iterator[tuple[str, Demand]]:
        """Node and demand of each."""
        asked = self.asked
        stay = list(asked.stay.ranks.values() or asked.stay.trainers)
        for node in self.plan.trainers:
            if node in stay:
                stay.remove(node)
            else:
                yield node, asked.gang.trainer
        for i, node in enumerate(self.plan.rollouts):
            if node and i not in asked.stay.rollouts:
                yield node, asked.gang.rollout


def take_turns(cluster: Cluster, waiting: Iterable[Asked]) -> tuple[list[Verdict], Cluster]:
    """A verdict for each, in the order of their turns, and what they left. Who finds no room keeps nobody else waiting."""
    verdicts = []
    for one in sorted(waiting, key=lambda a: a.turn):
        found = plan(cluster.closing(one.excluded, EXCLUDED), one.gang, one.stay)
        if found.problem and one.excluded:  # rather there again than nowhere
            found = plan(cluster, one.gang, one.stay)
        verdicts.append(Verdict(one, found, _report(cluster, one, found)))
        cluster = cluster.without(verdicts[-1].taken())
    return verdicts, cluster


def has_grown(before: Cluster, now: Cluster) -> bool:
    """Whether somebody may fit now who did not."""
    known = {node.name: node for node in before.nodes}
    return any(_offers_more(known.get(node.name), node) for node in now.nodes)


def _offers_more(before: Node | None, now: Node) -> bool:
    if before is None or (before.closed and not now.closed):
        return True
    same = before.labels == now.labels and before.taints == now.taints
    return not same or any(amount > before.free.get(name, 0) for name, amount in now.free.items())


def _holds(node: Node, requests: Resources) -> bool:
    return all(node.free.get(name, 0) >= amount for name, amount in requests.items())


def _report(cluster: Cluster, one: Asked, found: Plan) -> PlacementReport:
    return PlacementReport() if found.problem else report(cluster, one.gang, found.trainers, found.rollouts)
