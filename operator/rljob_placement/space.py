"""The cluster as numbers, for one gang: how many of its pods each node has room for, and how far nodes are apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rljob_placement.cluster import Cluster, Node
from rljob_placement.gang import Demand, Gang

FACTOR = 4
"""A byte that crosses a level costs so many times as much as one that crosses the next narrower; between nodes of one narrowest domain it costs 1."""


@dataclass(slots=True)
class Domain:
    """A domain of a level, or the whole cluster: what lies in it."""

    name: str = ""
    children: list["Domain"] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    room: int = 0
    """Further trainers."""
    kept: int = 0
    """Trainers that are there and stay."""


@dataclass(slots=True)
class Space:
    """Nodes that may take a pod of the gang or hold one that stays, in the order of the tree."""

    nodes: list[Node]
    paths: list[tuple[str, ...]]
    """Domains of each node, widest first."""
    room: list[list[int]]
    """room[n][a]: further rollouts on node n beside a further trainers; its length says how many trainers."""
    kept: list[int]
    tree: Domain
    levels: list[list[Domain]]
    """Domains by level, widest first, nodes last."""
    _apart: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = field(default_factory=dict)

    def apart(self, one: int, other: int) -> int:
        """What a byte between two nodes costs."""
        if one == other:
            return 0
        key = (self.paths[one], self.paths[other])
        found = self._apart.get(key)
        if found is None:
            found = self._apart[key] = FACTOR ** (len(key[0]) - common(*key))
        return found

    def fits(self, node: int, trainers: int, rollouts: int) -> bool:
        """`trainers`: all of the gang's there, with those that stay."""
        fresh = max(0, trainers - self.kept[node])
        return fresh < len(self.room[node]) and rollouts <= self.room[node][fresh]


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many levels two nodes share, from the widest on: below one that differs nothing is shared."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def space(
    cluster: Cluster, gang: Gang, kept: Mapping[str, int], ranks: Collection[str], rollouts: Collection[str]
) -> Space:
    """Of those that stay and need no room: `kept`: trainers by node; `ranks`, `rollouts`: nodes of trainers with their ranks and of rollouts."""
    rows, there = [], {*kept, *ranks, *rollouts}
    trainers = gang.trainers - len(ranks) - sum(kept.values())
    for node in cluster.nodes:
        row = _room(node, gang, trainers, gang.rollouts - len(rollouts))
        if node.name in there or len(row) > 1 or row[0]:
            path = tuple(node.labels.get(key, "") for key in gang.levels)
            rows.append((path, node.name, node, row, kept.get(node.name, 0)))
    rows.sort(key=lambda r: r[:2])
    found = Space([r[2] for r in rows], [r[0] for r in rows], [r[3] for r in rows], [r[4] for r in rows], Domain(), [])
    _grow_tree(found, len(gang.levels))
    return found


def refusal(node: Node, gang: Gang, demand: Demand) -> str:
    """Why the node takes no pod of a role; empty if it may."""
    missing = next((key for key in gang.levels if key not in node.labels), "")
    return f"without label {missing}" if missing else demand.refuses(node)


def capacity(node: Node, demand: Demand, beside: int = 0, other: Demand | None = None) -> int:
    """How many pods fit into what is free, beside so many others."""
    fits = None
    for name, each in demand.requests.items():
        if each:
            free = node.free.get(name, 0) - (beside * other.requests.get(name, 0) if other else 0)
            fits = free // each if fits is None else min(fits, free // each)
    return max(0, fits or 0)


def _room(node: Node, gang: Gang, trainers: int, rollouts: int) -> list[int]:
    most = 0 if refusal(node, gang, gang.trainer) else min(trainers, capacity(node, gang.trainer))
    barred = bool(refusal(node, gang, gang.rollout))
    return [
        0 if barred else min(rollouts, capacity(node, gang.rollout, beside, gang.trainer)) for beside in range(most + 1)
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
            parent.room += len(s.room[n]) - 1
            parent.kept += s.kept[n]
