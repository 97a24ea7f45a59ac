"""Starting points of the search: compact sets of nodes, filled in an order that keeps heavy links together."""

import heapq
from collections.abc import Iterator
from itertools import accumulate

from rljob_placement.nearest import NearestNodes
from rljob_placement.quotas import quotas
from rljob_placement.space import Domain, PlacementProblem, Places, Space

TIGHTEST = 3
"""Number of domains that are tried on the narrowest level that has any."""


def starts(problem: PlacementProblem, stages: int) -> Iterator[Places]:
    """Placements of the whole gang. If there are none, it does not fit: that is exact (see `quotas`)."""
    any_start = False
    orders = _orders(problem)
    units = sorted({1, max(1, problem.trainers // stages), min(stages, problem.trainers)}, reverse=True)
    tried: set[tuple[int, ...]] = set()
    for domain in _regions(problem):
        for unit in units:
            slots = tuple(_slots(problem, domain, unit))
            if slots in tried:
                continue
            tried.add(slots)
            for order in orders:
                places = _fill(problem, slots, order)
                if places:
                    any_start = True
                    yield places
    each = None if any_start else quotas(problem)
    if each:
        slots = tuple(n for n, (trainers, _) in enumerate(each) for _ in range(trainers + problem.space.kept[n]))
        places = _with_trainers(problem, slots, orders[0])
        rollouts = (n for n, (_, count) in enumerate(each) for _ in range(count))
        for pod in range(problem.trainers, problem.pods):
            if places.of[pod] < 0:
                places.put(pod, next(rollouts))
        yield places


def _regions(problem: PlacementProblem) -> Iterator[Domain]:
    """Domains that the whole gang fits into, narrow ones first, and last the cluster."""
    s, stay = problem.space, sum(problem.space.kept)
    more, first = problem.loose - stay, True
    for level in reversed(s.levels):
        fitting = [d for d in level if d.capacity >= more and d.kept == stay]
        fitting.sort(key=lambda d: d.capacity)
        yield from fitting[: TIGHTEST if first else 1]
        if fitting and not first:  # the one with most capacity leaves most for rollouts
            yield fitting[-1]
        first = first and not fitting
    if s.tree.capacity >= more:
        yield s.tree


def _slots(problem: PlacementProblem, domain: Domain, unit: int) -> Iterator[int]:
    """The node of each trainer, in the order of the tree: of those that stay and of the further ones."""
    s = problem.space
    taken = [0] * len(s.nodes)
    _share(s, domain, problem.loose - sum(s.kept), unit, taken)
    for n in range(len(s.nodes)):
        yield from [n] * (s.kept[n] + taken[n])


def _share(s: Space, domain: Domain, wanted: int, unit: int, taken: list[int]) -> None:
    """Distributes further trainers over the children of a domain: over as few as possible, and in multiples of `unit` if possible."""
    if not wanted:
        return
    if not domain.children:
        taken[domain.nodes[0]] += wanted
        return
    usable = {id(d): d.capacity // unit * unit for d in domain.children}
    if sum(usable.values()) < wanted:
        usable = {id(d): d.capacity for d in domain.children}
    for chosen, count in _chosen(domain.children, usable, wanted):
        _share(s, chosen, count, unit, taken)


def _chosen(domains: list[Domain], usable: dict[int, int], wanted: int) -> Iterator[tuple[Domain, int]]:
    """Domains, and how many of the wanted trainers go to each: those with most that is usable, until one holds all that are left. Of those that do,
    the one with the least capacity. Domains where pods stay come first."""
    order = sorted((d for d in domains if d.capacity), key=lambda d: (not d.kept, -usable[id(d)]))
    most = [*accumulate((usable[id(d)] for d in reversed(order)), max)][::-1]
    for i, domain in enumerate(order):
        if most[i] >= wanted:
            whole = (d for d in order[i:] if usable[id(d)] >= wanted)
            yield min(whole, key=lambda d: (-d.kept, d.capacity)), wanted
            return
        yield domain, usable[id(domain)]
        wanted -= usable[id(domain)]


def _orders(problem: PlacementProblem) -> list[list[int]]:
    """Orders in which trainers fill the slots: by rank, and by connection. Both are also reversed, in case the last domain has the
    capacity for rollouts."""
    if not problem.loose:
        return [[]]
    ranks = list(range(problem.trainers))
    grown = _grown(problem)
    orders = [ranks, ranks[::-1]]
    return orders if grown == ranks else [*orders, grown, grown[::-1]]


def _grown(problem: PlacementProblem) -> list[int]:
    """Ranks from 0 on, each followed by the rank that exchanges most with all before it (greedy graph growing, Karypis and Kumar 1998)."""
    pull = [0.0] * problem.trainers
    heap, order, done = [(0.0, 0)], list[int](), set[int]()
    for other in range(1, problem.trainers):
        heap.append((0.0, other))
    while heap:
        _, pod = heapq.heappop(heap)
        if pod in done:
            continue
        done.add(pod)
        order.append(pod)
        for other, volume in problem.near[pod]:
            if other < problem.trainers and other not in done:
                pull[other] += volume
                heapq.heappush(heap, (-pull[other], other))
    return order


def _fill(problem: PlacementProblem, slots: tuple[int, ...], order: list[int]) -> Places | None:
    """Puts trainers into the slots, then each rollout as near as it fits; None: one does not fit."""
    places = _with_trainers(problem, slots, order)
    nearest = NearestNodes(places)
    for pod in range(problem.trainers, problem.pods):
        if places.of[pod] < 0 and not nearest.put(pod):
            return None
    return places


def _with_trainers(problem: PlacementProblem, slots: tuple[int, ...], order: list[int]) -> Places:
    places = Places.empty(problem)
    for rank, node in zip(order, slots, strict=True):
        places.put(rank, node)
    return places
