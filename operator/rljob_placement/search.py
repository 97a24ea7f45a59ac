"""Finds a node for every trainer and every rollout of the minimum, all or nothing, and for as many further rollouts as fit.

Starting points (start.py) are improved (improve.py). For small gangs, branch and bound then finds the best placement, if it ends within its limit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rljob_api import names
from rljob_placement.cluster import Cluster
from rljob_placement.explain import why
from rljob_placement.gang import Gang, Placement, Stay
from rljob_placement.improve import improve
from rljob_placement.nearest import NearestNodes
from rljob_placement.space import PlacementProblem, Places, Space, space
from rljob_placement.start import starts

LARGEST = 10
"""Largest gang, in pods, that is searched exactly."""
BRANCHES = 20_000
"""Branches after which the exact search ends."""


@dataclass(slots=True)
class Search:
    """Branch and bound: depth first, cheapest nodes first. Of nodes that do not differ only the first is tried."""

    problem: PlacementProblem
    best: float
    finished: Places | None = None
    branches: int = 0
    order: list[int] = field(default_factory=list)

    def run(self, places: Places, depth: int, cost: float) -> None:
        if cost >= self.best or self.branches >= BRANCHES:
            return
        if depth == len(self.order):
            self.best, self.finished = cost * (1 - 1e-12), places.copy()
            return
        pod = self.order[depth]
        options = sorted((self.problem.at(pod, n, places.of), n) for n in self._nodes(places, pod, depth))
        for more, node in options:
            self.branches += 1
            places.put(pod, node)
            self.run(places, depth + 1, cost + more)
            places.take(pod)

    def _nodes(self, places: Places, pod: int, depth: int) -> Iterator[int]:
        s, seen = self.problem.space, set[tuple[object, ...]]()
        must = self._must(places, depth) if self.problem.is_trainer(pod) else False
        occupied = set(places.of)
        for n in range(len(s.nodes)):
            if not places.has_capacity(pod, n) or (must and places.trainers.get(n, 0) >= s.kept[n]):
                continue
            if n not in occupied:
                alike = (s.paths[n], s.kept[n], *s.capacity[n])
                if alike in seen:
                    continue
                seen.add(alike)
            yield n

    def _must(self, places: Places, depth: int) -> bool:
        """Whether all trainers that are left have to go to nodes where pods stay, since no more than these are left."""
        kept = self.problem.space.kept
        unmet = sum(max(0, k - places.trainers.get(n, 0)) for n, k in enumerate(kept))
        return unmet >= sum(self.problem.is_trainer(pod) for pod in self.order[depth:])


def perfect(places: Places) -> Places:
    """The best placement of a small gang, if it is found; otherwise the given one."""
    problem = places.problem
    if problem.pods > LARGEST:
        return places
    order = [p for p in range(problem.pods) if p not in problem.fixed]
    start = Places.empty(problem)
    search = Search(problem, problem.cost(places.of) * (1 - 1e-9), order=order)
    search.run(start, 0, _between_fixed(problem, start))
    return search.finished or places


def _between_fixed(problem: PlacementProblem, start: Places) -> float:
    """Cost of the links between pods that stay."""
    return sum(problem.at(pod, node, start.of) for pod, node in problem.fixed.items() if pod < problem.pods) / 2


BEST = 2
"""Number of starting points that are improved: the cheapest ones."""
MOST_LOOKUPS = 200_000
"""Number of costs that a search may look up: about a third of a second."""


def search(cluster: Cluster, gang: Gang, stay: Stay, role: str = names.ROLE_TRAINER) -> Placement:
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
    problem = PlacementProblem.of(s, gang, fixed)
    options = sorted(_valued(problem, starts(problem, gang.stages)), key=lambda o: o[0])
    if not options:
        there = len(stay.ranks) or kept.total()
        return Placement(problem=why(cluster, gang, there, len(rollouts), role), looked=problem.looked)
    best = _best(problem, [p for _, p in options[:BEST]])
    return Placement(
        trainers=tuple(s.nodes[n].name for n in best.of[: gang.trainers]),
        rollouts=tuple(_further(best, gang, s, rollouts)),
        cost=problem.cost(best.of),
        looked=problem.looked,
    )


def _valued(problem: PlacementProblem, candidates: Iterable[Places]) -> Iterator[tuple[float, Places]]:
    """Placements with their costs, up to the first one that costs nothing, as on a single node: none is better. Those of narrow domains come first,
    so of a gang that looks up MOST_LOOKUPS costs before it is improved, the first ones are enough."""
    for places in candidates:
        cost = problem.cost(places.of)
        yield cost, places
        if not cost or problem.looked >= MOST_LOOKUPS:
            return


def _best(problem: PlacementProblem, candidates: list[Places]) -> Places:
    for places in candidates:
        improve(places, problem.looked + MOST_LOOKUPS // BEST)
    return perfect(min(candidates, key=lambda p: problem.cost(p.of)))


def _further(places: Places, gang: Gang, s: Space, stays: Mapping[int, str]) -> list[str]:
    """Nodes of all rollouts: those of the minimum, those that stay, and each further one as near to rank 0 as it fits; empty: it does not."""
    problem, nearest = places.problem, NearestNodes(places)
    nodes = [s.nodes[n].name for n in places.of[gang.trainers :]]
    for i in range(gang.minimum, gang.rollouts):
        problem.near.append([(0, 1.0)])
        places.of.append(-1)
        problem.rollouts += 1
        if i in stays:
            nodes.append(stays[i])
        else:
            nodes.append(s.nodes[places.of[-1]].name if nearest.put(problem.pods - 1) else "")
    return nodes
