"""Divides the nodes among the roles of a job, so that pods of all sizes fit together.

On the rare cluster on which gangs that are placed one after another do not fit, pods of several sizes are packed by an exhaustive search.

Nodes are filled one by one, each as far as possible: a pod that still fits could always be moved there from a later node. Later choices depend only
on how many pods of each kind are left and on which node is next, so no such state is searched twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rljob_api import names
from rljob_api.quantity import Thousandths, add
from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang, Stay
from rljob_placement.space import refusal

MOST_TRIES = 50_000
"""Ways to fill a node that a search may try: about a third of a second."""
Counts = tuple[int, ...]
"""Number of pods of each kind."""


@dataclass(frozen=True, slots=True)
class AlikePods:
    """A number of pods that request the same."""

    requests: Thousandths
    count: int
    nodes: frozenset[int]
    """Indices of the nodes that may take them."""


def pack(free: Sequence[Thousandths], kinds: Sequence[AlikePods], tries: int = MOST_TRIES) -> list[Counts] | None:
    """Numbers of pods of each kind, by node, so that all fit. None: they do not, or no way was found within this number of tries. `free`: what is
    free on each node. Put kinds of large pods first: that finds a way sooner."""
    search = _Search(free, kinds, tries)
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
    def __init__(self, free: Sequence[Thousandths], kinds: Sequence[AlikePods], tries: int) -> None:
        self._free, self._kinds, self._tries = free, kinds, tries
        self.hopeless: set[tuple[int, Counts]] = set()
        """Node and pods left from which on there is no way."""
        self._sums: list[Thousandths] = [{}]
        """What is free, in sum, on a node and all after it."""
        self._capacities: list[Counts] = [(0,) * len(kinds)]
        """How many pods of each kind alone fit onto a node and all after it."""
        for node in reversed(range(len(free))):
            here = tuple(self._capacity(k, node, free[node]) for k in range(len(kinds)))
            self._capacities.append(tuple(a + b for a, b in zip(self._capacities[-1], here, strict=True)))
            self._sums.append(add(self._sums[-1], {name: max(0, amount) for name, amount in free[node].items()}))
        self._sums.reverse()
        self._capacities.reverse()

    def ways(self, node: int, left: Counts) -> Iterator[Counts]:
        """Ways to fill a node; none if no way can be completed on the nodes after it."""
        if (node, left) in self.hopeless or not self._may_fit(node, left):
            return
        for way, rest in self._filled(node, self._free[node], left, 0):
            self._tries -= 1
            if self._tries < 0:
                return
            if not any(min(count, self._capacity(k, node, rest)) for k, count in enumerate(_less(left, way))):
                yield way

    def _may_fit(self, node: int, left: Counts) -> bool:
        """Whether the pods left may fit onto this node and those after it, by the sum of each resource and by the capacity for each kind alone."""
        wanted: Thousandths = {}
        for kind, count in zip(self._kinds, left, strict=True):
            wanted = add(wanted, {name: count * each for name, each in kind.requests.items()})
        enough = all(self._sums[node].get(name, 0) >= amount for name, amount in wanted.items())
        return enough and all(capacity >= count for capacity, count in zip(self._capacities[node], left, strict=True))

    def _filled(self, node: int, free: Thousandths, left: Counts, kind: int) -> Iterator[tuple[Counts, Thousandths]]:
        """Ways to add pods of this kind and those after it, large numbers first, and what is free then."""
        if kind == len(left):
            yield (), free
            return
        requests = self._kinds[kind].requests
        for count in range(min(left[kind], self._capacity(kind, node, free)), -1, -1):
            rest = {name: amount - count * requests.get(name, 0) for name, amount in free.items()}
            for others, after in self._filled(node, rest, left, kind + 1):
                yield (count, *others), after

    def _capacity(self, kind: int, node: int, free: Thousandths) -> int:
        """How many pods of one kind fit."""
        wanted = self._kinds[kind]
        if node not in wanted.nodes:
            return 0
        return max(0, min((free.get(name, 0) // each for name, each in wanted.requests.items() if each), default=0))


def share(cluster: Cluster, gang: Gang, stay: Stay) -> Mapping[str, Cluster] | None:
    """A cluster for each role, with just what its pods take of each node; None: the pods do not fit together. Rollouts beyond the minimum are not
    counted."""
    counts = _counts(gang, stay, {node.name for node in cluster.nodes})
    roles = sorted(counts, key=lambda role: _size(gang.demand(role)), reverse=True)
    ways = pack([dict(n.free) for n in cluster.nodes], [_kind(cluster, gang, role, counts[role]) for role in roles])
    if ways is None:
        return None
    return {role: _part(cluster, gang.demand(role), (way[k] for way in ways)) for k, role in enumerate(roles)}


def _counts(gang: Gang, stay: Stay, present: set[str]) -> dict[str, int]:
    """Number of pods of each role that have no node yet. `present`: names of the nodes."""
    counts = {names.ROLE_TRAINER: gang.trainers - _staying(stay, present)}
    counts[names.ROLE_ROLLOUT] = gang.minimum - _servers(stay.rollouts, gang.minimum, present)
    for role, own in gang.gangs.items():
        counts[role] = own.trainers - _staying(stay.gangs.get(role, Stay()), present)
    for pool in gang.pools:
        counts[pool.name] = pool.pods - _servers(stay.servers(pool.name), pool.pods, present)
    return counts


def _staying(stay: Stay, present: set[str]) -> int:
    return sum(name in present for name in (stay.ranks.values() or stay.trainers))


def _servers(stay: Mapping[int, str], count: int, present: set[str]) -> int:
    return sum(number < count and name in present for number, name in stay.items())


def _size(demand: Demand) -> tuple[int, int]:
    """Sort key of roles: devices, then cpu."""
    return max((n for name, n in demand.requests.items() if "/" in name), default=0), demand.requests.get("cpu", 0)


def _kind(cluster: Cluster, gang: Gang, role: str, count: int) -> AlikePods:
    demand = gang.demand(role)
    nodes = (n for n, node in enumerate(cluster.nodes) if not refusal(node, gang, demand))
    return AlikePods(dict(demand.requests), count, frozenset(nodes))


def _part(cluster: Cluster, demand: Demand, pods: Iterable[int]) -> Cluster:
    return Cluster(tuple(_with(node, demand.requests, here) for node, here in zip(cluster.nodes, pods, strict=True)))


def _with(node: Node, requests: Thousandths, pods: int) -> Node:
    return replace(node, free={name: pods * each for name, each in requests.items()})
