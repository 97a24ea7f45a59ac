"""Who gets what: one job after the other, each with what those before it left. All or nothing, so nobody waits half-placed."""

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.placement.cluster import Cluster
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


def take_turns(cluster: Cluster, waiting: Iterable[Asked], last: Asked) -> list[Verdict]:
    """Verdicts of all whose turn comes before that of `last`, and its own, in order. They get their seats in passes of their own, and it may not
    take what they need. Who finds no room keeps nobody else waiting.
    """
    verdicts = []
    for one in sorted((a for a in (*waiting, last) if a.turn <= last.turn), key=lambda a: a.turn):
        found = plan(cluster.closing(one.excluded, EXCLUDED), one.gang, one.stay)
        if found.problem and one.excluded:  # rather there again than nowhere
            found = plan(cluster, one.gang, one.stay)
        verdicts.append(Verdict(one, found, _report(cluster, one, found)))
        if not found.problem:
            cluster = cluster.without(_taken(one, found))
    return verdicts


def _report(cluster: Cluster, one: Asked, found: Plan) -> PlacementReport:
    return PlacementReport() if found.problem else report(cluster, one.gang, found.trainers, found.rollouts)


def _taken(one: Asked, found: Plan) -> dict[str, Resources]:
    """By node, what pods request that have no home yet."""
    taken: dict[str, Resources] = {}
    stay = list(one.stay.ranks.values() or one.stay.trainers)
    for node in found.trainers:
        if node in stay:
            stay.remove(node)
        else:
            taken[node] = add(taken.get(node, {}), one.gang.trainer.requests)
    for i, node in enumerate(found.rollouts):
        if node and i not in one.stay.rollouts:
            taken[node] = add(taken.get(node, {}), one.gang.rollout.requests)
    return taken
