"""Finds a node for every trainer and every rollout of the minimum, all or nothing, and for as many further rollouts as fit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rljob_api import names
from rljob_placement.cluster import Cluster
from rljob_placement.explain import why
from rljob_placement.gang import Gang, Plan, Stay
from rljob_placement.improve import improve, perfect
from rljob_placement.space import Places, Problem, Space, space
from rljob_placement.start import nearest, starts

BEST = 2
"""Number of starting points that are improved: the cheapest ones."""
MOST_LOOKUPS = 200_000
"""Number of costs that a search may look up: about a third of a second."""


def search(cluster: Cluster, gang: Gang, stay: Stay, role: str = names.ROLE_TRAINER) -> Plan:
    """The plan of one gang, or its problem. `role`: of the gang, for the message. Raises ValueError if only some of the ranks stay."""
    present = {node.name for node in cluster.nodes}
    if stay.ranks and (len(stay.ranks) < gang.trainers or not present.issuperset(stay.ranks.values())):
        raise ValueError("ranks stay all or not at all")
    kept = Counter(name for name in stay.trainers if name in present)
    rollouts = {i: name for i, name in stay.rollouts.items() if name in present and i < gang.rollouts}
    s = space(cluster, gang, kept, stay.ranks.values(), rollouts.values())
    number = {node.name: n for n, node in enumerate(s.nodes)}
    fixed = {gang.trainers + i: number[name] for i, name in rollouts.items()}
    fixed |= {rank: number[name] for rank, name in stay.ranks.items()}
    problem = Problem.of(s, gang, fixed)
    options = sorted(_valued(problem, starts(problem, gang.stages)), key=lambda o: o[0])
    if not options:
        there = len(stay.ranks) or kept.total()
        return Plan(problem=why(cluster, gang, there, len(rollouts), role), looked=problem.looked)
    best = _best(problem, [p for _, p in options[:BEST]])
    return Plan(
        trainers=tuple(s.nodes[n].name for n in best.of[: gang.trainers]),
        rollouts=tuple(_further(best, gang, s, rollouts)),
        cost=problem.cost(best.of),
        looked=problem.looked,
    )


def _valued(problem: Problem, found: Iterable[Places]) -> Iterator[tuple[float, Places]]:
    """Placements with their costs, up to the first one that costs nothing, as on a single node: none is better."""
    for places in found:
        cost = problem.cost(places.of)
        yield cost, places
        if not cost:
            return


def _best(problem: Problem, candidates: list[Places]) -> Places:
    for places in candidates:
        improve(places, problem.looked + MOST_LOOKUPS // BEST)
    return perfect(min(candidates, key=lambda p: problem.cost(p.of)))


def _further(places: Places, gang: Gang, s: Space, stays: Mapping[int, str]) -> list[str]:
    """Nodes of all rollouts: those of the minimum, those that stay, and each further one as near to rank 0 as it fits; empty: it does not."""
    problem = places.problem
    found = [s.nodes[n].name for n in places.of[gang.trainers :]]
    for i in range(gang.minimum, gang.rollouts):
        problem.near.append([(0, 1.0)])
        places.of.append(-1)
        problem.rollouts += 1
        if i in stays:
            found.append(stays[i])
        else:
            found.append(s.nodes[places.of[-1]].name if nearest(places, problem.pods - 1) else "")
    return found
