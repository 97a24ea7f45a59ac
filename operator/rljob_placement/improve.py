"""Improves a placement: two pods are exchanged, or one is moved, as long as that lowers the cost (Kernighan and Lin 1970, with single exchanges).

What is tried for a pod is found by domains, and not by a look at all pods and nodes.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterator
from heapq import heappop, heappush

from rljob_placement.space import Domain, Places

ALL_PAIRS = 48
"""Largest gang, in pods, for which every exchange is tried. In a larger one, only those that bring a pod near one that it exchanges bytes with."""
NEIGHBOURS = 8
"""Exchanges that are tried for a pod of a larger gang, for each domain of a pod that it exchanges bytes with."""
EPSILON = 1e-9
"""Smallest relative gain that counts."""
PodsOfDomain = tuple[bool, int]
"""Pods of one kind (whether they are trainers) in one of the narrowest domains, by its id."""


def improve(places: Places, limit: int) -> None:
    """Improves `places` in place, until nothing helps or the problem has looked up `limit` costs."""
    problem, improvement = places.problem, Improvement(places)
    better = True
    while better and problem.looked < limit:
        better = False
        for pod in range(problem.pods):
            if problem.looked >= limit:
                return
            better |= improvement.of(pod)


class Improvement:
    """The placement, with its pods and its nodes by domain."""

    def __init__(self, places: Places) -> None:
        self._places, self._problem, self._space = places, places.problem, places.problem.space
        self._is_large = self._problem.pods > ALL_PAIRS
        self._narrowest = [chain[-2] for chain in self._space.chains]
        """By node."""
        self._pods = defaultdict[PodsOfDomain, list[int]](list)
        """Those that may be exchanged, in order."""
        self._free: dict[PodsOfDomain, list[int]] = {}
        """Nodes that may have capacity for such a pod: a heap."""
        for pod, node in enumerate(places.of):
            if pod not in self._problem.fixed:
                self._pods[self._key(pod, self._narrowest[node])].append(pod)

    def of(self, pod: int) -> bool:
        """Exchanges and moves one pod. Returns whether that helped."""
        places = self._places
        if pod in self._problem.fixed or not self._problem.at(pod, places.of[pod], places.of):
            return False
        better = self._move(pod)
        for other in self._partners(pod):
            better |= self._exchange(pod, other)
        return better

    def _key(self, pod: int, domain: Domain) -> PodsOfDomain:
        return self._problem.is_trainer(pod), id(domain)

    def _partners(self, pod: int) -> list[int]:
        """Pods of the same kind with which exchanges are tried."""
        if not self._is_large:
            kinds = (
                pods for (is_trainer, _), pods in self._pods.items() if is_trainer == self._problem.is_trainer(pod)
            )
            return sorted(other for pods in kinds for other in pods if other != pod)
        own = self._narrowest[self._places.of[pod]]
        wanted = (self._pods[self._key(pod, domain)] for domain in self._around(pod) if domain is not own)
        return sorted(other for pods in wanted for other in pods[:NEIGHBOURS])

    def _around(self, pod: int) -> Collection[Domain]:
        """The narrowest domains of pods with which it exchanges bytes."""
        domains = (self._narrowest[self._places.of[other]] for other, _ in self._problem.near[pod])
        return {id(domain): domain for domain in domains}.values()

    def _exchange(self, one: int, other: int) -> bool:
        problem, of = self._problem, self._places.of
        a, b = of[one], of[other]
        if a == b:
            return False
        before = problem.at(one, a, of, but=other) + problem.at(other, b, of, but=one)
        after = problem.at(one, b, of, but=other) + problem.at(other, a, of, but=one)
        if after >= before * (1 - EPSILON):
            return False
        of[one], of[other] = b, a
        self._moved(one, a)
        self._moved(other, b)
        return True

    def _moved(self, pod: int, before: int) -> None:
        """The pod is not on the node any more on which it was before."""
        old, new = self._narrowest[before], self._narrowest[self._places.of[pod]]
        if old is not new:
            pods = self._pods[self._key(pod, old)]
            del pods[bisect_left(pods, pod)]
            insort(self._pods[self._key(pod, new)], pod)

    def _move(self, pod: int) -> bool:
        """Moves a pod to the best node with capacity."""
        problem, places = self._problem, self._places
        if not places.may_leave(pod):
            return False
        start = places.take(pod)
        best, chosen = problem.at(pod, start, places.of) * (1 - EPSILON), start
        for n in sorted(set(self._options(pod, start))):
            cost = problem.at(pod, n, places.of)
            if cost < best:
                best, chosen = cost, n
        places.put(pod, chosen)
        if chosen == start:
            return False
        for kind in (True, False):
            heap = self._free.get((kind, id(self._narrowest[start])))
            if heap is not None:
                heappush(heap, start)
        self._moved(pod, start)
        return True

    def _options(self, pod: int, start: int) -> Iterator[int]:
        """Nodes with capacity other than `start`: of each domain the first, and those of pods with which it exchanges bytes."""
        places = self._places
        domains = self._around(pod) if self._is_large else {id(d): d for d in self._narrowest}.values()
        yield from (n for n in (self._first_free(pod, domain, start) for domain in domains) if n is not None)
        used = {places.of[other] for other, _ in self._problem.near[pod]} - {start}
        yield from (n for n in used if places.has_capacity(pod, n))

    def _first_free(self, pod: int, domain: Domain, but: int) -> int | None:
        """The first node of the domain with capacity for the pod, `but` not this one; None: there is none."""
        key, first = self._key(pod, domain), None
        heap = self._free.setdefault(key, list(domain.nodes)) if key not in self._free else self._free[key]
        left = False
        while heap and first is None:
            if heap[0] == but or not self._places.has_capacity(pod, heap[0]):
                left |= heappop(heap) == but
            else:
                first = heap[0]
        if left:
            heappush(heap, but)
        return first
