"""One scheduling cycle: jobs are placed one after another, each on what those before it have left. A gang gets all of its nodes or none."""

from collections.abc import Iterable

from rljob_api.status import PlacementReport
from rljob_operator.model.scheduling import SchedulingRequest, SchedulingResult
from rljob_placement.cluster import Cluster, Node
from rljob_placement.nodes import Plan
from rljob_placement.plan import plan
from rljob_placement.report import report

EXCLUDED = "avoided by this job"


def schedule_pending(cluster: Cluster, pending: Iterable[SchedulingRequest]) -> tuple[list[SchedulingResult], Cluster]:
    """A result for each request, in the order in which they were served, and the cluster with what is left. A job that does not fit does not hold
    back those after it."""
    results = []
    for one in sorted(pending, key=lambda request: request.order):
        good = usable(cluster, one)
        found = plan(good, one.gang, one.stay)
        if found.problem and good is not cluster:  # a node that is better avoided is better than none
            found = plan(cluster, one.gang, one.stay)
        results.append(SchedulingResult(one, found, _report(cluster, one, found)))
        cluster = cluster.without(results[-1].taken())
    return results, cluster


def usable(cluster: Cluster, one: SchedulingRequest) -> Cluster:
    """The cluster without nodes that the job avoids, and without quarantined ones; the cluster itself if there are none."""
    sound = cluster.sound()
    return sound.closing(one.excluded, EXCLUDED) if one.excluded else sound


def has_refuge(cluster: Cluster, one: SchedulingRequest) -> bool:
    """Whether the whole gang has capacity without these nodes."""
    return not plan(usable(cluster, one), one.gang, one.stay).problem


def has_grown(before: Cluster, now: Cluster) -> bool:
    """Whether a job that did not fit before may fit now."""
    known = {node.name: node for node in before.nodes}
    return any(_offers_more(known.get(node.name), node) for node in now.nodes)


def _offers_more(before: Node | None, now: Node) -> bool:
    if before is None or (before.closed and not now.closed):
        return True
    same = before.labels == now.labels and before.taints == now.taints
    return not same or any(amount > before.free.get(name, 0) for name, amount in now.free.items())


def _report(cluster: Cluster, one: SchedulingRequest, found: Plan) -> PlacementReport:
    return PlacementReport() if found.problem else report(cluster, one.gang, found)
