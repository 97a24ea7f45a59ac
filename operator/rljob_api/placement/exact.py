"""Branch and bound for small gangs: the best placement there is, if the search ends within its bound."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rljob_api.placement.state import Places, Problem

LARGEST = 10
"""Pods."""
BRANCHES = 20_000


@dataclass(slots=True)
class Search:
    """Depth first, nearest nodes first; of nodes that nothing tells apart only the first is tried."""

    problem: Problem
    best: float
    found: Places | None = None
    branches: int = 0
    order: list[int] = field(default_factory=list)

    def run(self, places: Places, depth: int, cost: float) -> None:
        if cost >= self.best or self.branches >= BRANCHES:
            return
        if depth == len(self.order):
            self.best, self.found = cost * (1 - 1e-12), places.copy()
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
            if not places.room(pod, n) or (must and places.trainers.get(n, 0) >= s.kept[n]):
                continue
            if n not in occupied:
                alike = (s.paths[n], s.kept[n], *s.room[n])
                if alike in seen:
                    continue
                seen.add(alike)
            yield n

    def _must(self, places: Places, depth: int) -> bool:
        """So few trainers are left that all have to go where a pod stays."""
        kept = self.problem.space.kept
        unmet = sum(max(0, k - places.trainers.get(n, 0)) for n, k in enumerate(kept))
        return unmet >= sum(self.problem.is_trainer(pod) for pod in self.order[depth:])


def perfect(places: Places) -> Places:
    """The best there is, or what was given."""
    problem = places.problem
    if problem.pods > LARGEST:
        return places
    order = [p for p in range(problem.pods) if p not in problem.fixed]
    start = Places.empty(problem)
    search = Search(problem, problem.cost(places.of) * (1 - 1e-9), order=order)
    search.run(start, 0, _between_fixed(problem, start))
    return search.found or places


def _between_fixed(problem: Problem, start: Places) -> float:
    return sum(problem.at(pod, node, start.of) for pod, node in problem.fixed.items() if pod < problem.pods) / 2
