"""Whether pods of several sizes fit onto the nodes together: a search of all ways, for the rare cluster where one gang after the other has no room.

Nodes are filled one by one, each with pods to which none of those left could be added: a pod for which there is room could always be moved here from
a later node. What is left of each kind, and which node is next, is all that later choices depend on, so that no such state is searched twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rljob_api.quantity import Resources, add

LOOKS = 50_000
"""Ways to fill a node that a search may look at: about a third of a second."""
Counts = tuple[int, ...]
"""Pods of each kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods of one size."""

    requests: Resources
    count: int
    nodes: frozenset[int]
    """Numbers of those that may take them."""


def pack(free: Sequence[Resources], kinds: Sequence[Kind], looks: int = LOOKS) -> list[Counts] | None:
    """By node, pods of each kind, so that all have a place; None: there is no way, or none was found within so many looks. It is found sooner
    when kinds of large pods come first. `free`: of each node."""
    search = _Search(free, kinds, looks)
    left = [tuple(kind.count for kind in kinds)]
    chosen: list[Counts] = []
    ways = [search.ways(0, left[0])]
    while any(left[-1]):
        way = next(ways[-1], None)
        if way is not None:
            chosen.append(way)
            left.append(_less(left[-1], way))
            ways.append(search.ways(len(chosen), left[-1]))
            continue
        search.hopeless.add((len(chosen), left[-1]))
        if not chosen:
            return None
        ways.pop(), left.pop(), chosen.pop()
    return chosen + [(0,) * len(kinds)] * (len(free) - len(chosen))


def _less(left: Counts, way: Counts) -> Counts:
    return tuple(count - here for count, here in zip(left, way, strict=True))


class _Search:
    def __init__(self, free: Sequence[Resources], kinds: Sequence[Kind], looks: int) -> None:
        self._free, self._kinds, self._looks = free, kinds, looks
        self.hopeless: set[tuple[int, Counts]] = set()
        """From which node on, with what left."""
        self._sums: list[Resources] = [{}]
        """What is free from a node on."""
        self._rooms: list[Counts] = [(0,) * len(kinds)]
        """For pods of each kind alone, from a node on."""
        for node in reversed(range(len(free))):
            here = tuple(self._room(k, node, free[node]) for k in range(len(kinds)))
            self._rooms.append(tuple(a + b for a, b in zip(self._rooms[-1], here, strict=True)))
            self._sums.append(add(self._sums[-1], {name: max(0, amount) for name, amount in free[node].items()}))
        self._sums.reverse()
        self._rooms.reverse()

    def ways(self, node: int, left: Counts) -> Iterator[Counts]:
        """To fill a node; none where that cannot lead anywhere."""
        if (node, left) in self.hopeless or not self._may_fit(node, left):
            return
        for way, rest in self._filled(node, self._free[node], left, 0):
            self._looks -= 1
            if self._looks < 0:
                return
            if not any(min(count, self._room(k, node, rest)) for k, count in enumerate(_less(left, way))):
                yield way

    def _may_fit(self, node: int, left: Counts) -> bool:
        """On this node and those after it: by the sum of each resource, and by the room for each kind alone."""
        wanted: Resources = {}
        for kind, count in zip(self._kinds, left, strict=True):
            wanted = add(wanted, {name: count * each for name, each in kind.requests.items()})
        enough = all(self._sums[node].get(name, 0) >= amount for name, amount in wanted.items())
        return enough and all(room >= count for room, count in zip(self._rooms[node], left, strict=True))

    def _filled(self, node: int, free: Resources, left: Counts, kind: int) -> Iterator[tuple[Counts, Resources]]:
        """With pods from this kind on, many first; and what they leave."""
        if kind == len(left):
            yield (), free
            return
        requests = self._kinds[kind].requests
        for count in range(min(left[kind], self._room(kind, node, free)), -1, -1):
            rest = {name: amount - count * requests.get(name, 0) for name, amount in free.items()}
            for others, after in self._filled(node, rest, left, kind + 1):
                yield (count, *others), after

    def _room(self, kind: int, node: int, free: Resources) -> int:
        """For pods of one kind."""
        wanted = self._kinds[kind]
        if node not in wanted.nodes:
            return 0
        return max(0, min((free.get(name, 0) // each for name, each in wanted.requests.items() if each), default=0))
