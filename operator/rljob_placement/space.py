"""The cluster as one gang sees it, in numbers: how many of its pods fit onto each node, and how far nodes are apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang

FACTOR = 4
"""How much more a byte costs that crosses a level than one that crosses the next narrower level. Between nodes of one narrowest domain it costs 1."""


@dataclass(slots=True)
class Domain:
    """A domain of a topology level, or the whole cluster."""

    name: str = ""
    children: list["Domain"] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    capacity: int = 0
    """Number of further trainers that fit."""
    kept: int = 0
    """Number of trainers that stay in it."""


@dataclass(slots=True)
class Space:
    """The nodes that may take a pod of the gang or hold one that stays, in the order of the tree of domains."""

    nodes: list[Node]
    paths: list[tuple[str, ...]]
    """The domains of each node, widest first."""
    capacity: list[list[int]]
    """capacity[n][a]: how many further rollouts fit onto node n alongside `a` further trainers; len(capacity[n]) - 1: how many trainers alone."""
    kept: list[int]
    """Number of trainers that stay on each node."""
    tree: Domain
    """The whole cluster."""
    levels: list[list[Domain]]
    """Domains by level, widest first, nodes last."""
    _apart: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = field(default_factory=dict)

    def apart(self, one: int, other: int) -> int:
        """Cost of a byte between two nodes."""
        if one == other:
            return 0
        key = (self.paths[one], self.paths[other])
        found = self._apart.get(key)
        if found is None:
            found = self._apart[key] = FACTOR ** (len(key[0]) - common(*key))
        return found

    def fits(self, node: int, trainers: int, rollouts: int) -> bool:
        """Whether these numbers fit onto a node. `trainers`: with those that stay; `rollouts`: without."""
        fresh = max(0, trainers - self.kept[node])
        return fresh < len(self.capacity[node]) and rollouts <= self.capacity[node][fresh]


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Number of levels, from the widest on, that two nodes share. Below a level that differs, none is shared."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def space(
    cluster: Cluster, gang: Gang, kept: Mapping[str, int], ranks: Collection[str], rollouts: Collection[str]
) -> Space:
    """The space of a gang. The arguments are about pods that stay, and so need no capacity: `kept` is the number of trainers by node, `ranks` are the
    nodes of trainers that also keep their ranks, `rollouts` those of rollouts."""
    rows, there = [], {*kept, *ranks, *rollouts}
    trainers = gang.trainers - len(ranks) - sum(kept.values())
    for node in cluster.nodes:
        row = _row(node, gang, trainers, gang.rollouts - len(rollouts))
        if node.name in there or len(row) > 1 or row[0]:
            path = tuple(node.labels.get(key, "") for key in gang.levels)
            rows.append((path, node.name, node, row, kept.get(node.name, 0)))
    rows.sort(key=lambda r: r[:2])
    found = Space([r[2] for r in rows], [r[0] for r in rows], [r[3] for r in rows], [r[4] for r in rows], Domain(), [])
    _grow_tree(found, len(gang.levels))
    return found


def refusal(node: Node, gang: Gang, demand: Demand) -> str:
    """Why the node takes no pod of a role; empty: it may."""
    missing = next((key for key in gang.levels if key not in node.labels), "")
    return f"without label {missing}" if missing else demand.refuses(node)


def capacity(node: Node, demand: Demand, alongside: int = 0, other: Demand | None = None) -> int:
    """How many pods fit into what is free on the node, next to `alongside` pods of another role."""
    fits = None
    for name, each in demand.requests.items():
        if each:
            free = node.free.get(name, 0) - (alongside * other.requests.get(name, 0) if other else 0)
            fits = free // each if fits is None else min(fits, free // each)
    return max(0, fits or 0)


def _row(node: Node, gang: Gang, trainers: int, rollouts: int) -> list[int]:
    """The node's row of `Space.capacity`."""
    most = 0 if refusal(node, gang, gang.trainer) else min(trainers, capacity(node, gang.trainer))
    barred = bool(refusal(node, gang, gang.rollout))
    return [
        0 if barred else min(rollouts, capacity(node, gang.rollout, alongside, gang.trainer))
        for alongside in range(most + 1)
    ]


def _grow_tree(s: Space, depth: int) -> None:
    s.levels = [[] for _ in range(depth + 1)]
    known: dict[tuple[str, ...], Domain] = {(): s.tree}
    for n, path in enumerate(s.paths):
        chain = [path[: i + 1] for i in range(depth)] + [(*path, s.nodes[n].name, "")]
        parent = s.tree
        for level, key in enumerate([(), *chain]):
            if key not in known:
                known[key] = Domain("/".join(part for part in key if part))
                parent.children.append(known[key])
                s.levels[level - 1].append(known[key])
            parent = known[key]
            parent.nodes.append(n)
            parent.capacity += len(s.capacity[n]) - 1
            parent.kept += s.kept[n]
