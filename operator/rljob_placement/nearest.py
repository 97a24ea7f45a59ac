"""Puts rollouts one after another, each on the node where its links cost least; of equally cheap ones, where least capacity is left.

Nodes are not compared one by one. What a link costs depends on the narrowest domain that holds both of its ends. So all nodes of a domain cost the
same but for those in its parts that hold a pod of the other end, and these cost less. It is therefore enough to look at one node of each domain that
holds such a pod: that with the least capacity left.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from rljob_placement.space import Domain, Places

Candidate = tuple[int, int]
"""Capacity that is left on a node, and the node."""


class NearestNodes:
    """Nodes for the further rollouts of a placement, which nobody else changes meanwhile."""

    def __init__(self, places: Places) -> None:
        self._places, self._space = places, places.problem.space
        self._heaps: dict[int, list[Candidate]] = {}
        """Nodes with capacity, by the domain's id. Capacity that is left only becomes less, so an entry that is outdated comes after a newer one."""

    def put(self, rollout: int) -> bool:
        """False: it fits nowhere. `rollout`: number of its pod."""
        problem, places = self._places.problem, self._places
        options = (self._fullest(domain) for domain in self._around(rollout))
        best = min(((problem.at(rollout, n, places.of), left, n) for left, n in filter(None, options)), default=None)
        if best is None:
            return False
        node = best[-1]
        places.put(rollout, node)
        if places.has_capacity(rollout, node):
            for heap in (self._heaps.get(id(domain)) for domain in self._space.chains[node]):
                if heap is not None:
                    heappush(heap, (self._left(node), node))
        return True

    def _around(self, rollout: int) -> Iterator[Domain]:
        """The domains that hold a pod with which it exchanges bytes, each once, and the whole cluster."""
        places = self._places
        there = {places.of[other] for other, _ in places.problem.near[rollout]}
        domains = {id(domain): domain for n in there if n >= 0 for domain in self._space.chains[n]}
        yield from domains.values() or [self._space.tree]

    def _fullest(self, domain: Domain) -> Candidate | None:
        """The node of the domain with least capacity left; None: there is none with any."""
        heap = self._heaps.get(id(domain))
        if heap is None:
            heap = [(self._left(n), n) for n in domain.nodes if self._has_capacity(n)]
            heapify(heap)
            self._heaps[id(domain)] = heap
        while heap and not (heap[0][0] == self._left(heap[0][1]) and self._has_capacity(heap[0][1])):
            heappop(heap)
        return heap[0] if heap else None

    def _has_capacity(self, node: int) -> bool:
        """For one more rollout: all need the same, so the first one stands for any."""
        first = self._places.problem.trainers
        return self._places.has_capacity(first, node)

    def _left(self, node: int) -> int:
        places = self._places
        return self._space.capacity[node][0] - places.rollouts.get(node, 0) - places.trainers.get(node, 0)
