"""Who gets what: one job after the other, each with what those before it left. All or nothing, so nobody waits half-placed."""

from collections.abc import Iterable

from rljob_api.status import PlacementReport
from rljob_operator.model.scheduling import Assignment, SchedulingRequest
from rljob_placement.cluster import Cluster, Node
from rljob_placement.plan import Plan, plan
from rljob_placement.report import report

EXCLUDED = "lately did not take a pod of this job"


def take_turns(cluster: Cluster, waiting: Iterable[SchedulingRequest]) -> tuple[list[Assignment], Cluster]:
    """A verdict for each, in the order of their turns, and what they left. Who finds no room keeps nobody else waiting."""
    verdicts = []
    for one in sorted(waiting, key=lambda a: a.turn):
        found = plan(cluster.closing(one.excluded, EXCLUDED), one.gang, one.stay)
        if found.problem and one.excluded:  # rather there again than nowhere
            found = plan(cluster, one.gang, one.stay)
        verdicts.append(Assignment(one, found, _report(cluster, one, found)))
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


def _report(cluster: Cluster, one: SchedulingRequest, found: Plan) -> PlacementReport:
    return PlacementReport() if found.problem else report(cluster, one.gang, found.trainers, found.rollouts)
