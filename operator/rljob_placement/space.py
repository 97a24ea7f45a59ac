"""The cluster as one gang sees it, in numbers: how many of its pods fit onto each node, and how far nodes are apart. And a
placement while it is being searched for: a node for every pod, what is used, and what it costs."""

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
    chains: list[list[Domain]] = field(default_factory=list)
    """The domains that hold each node, from the whole cluster to the node itself."""
    _apart: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = field(default_factory=dict)

    def apart(self, one: int, other: int) -> int:
        """Cost of a byte between two nodes."""
        if one == other:
            return 0
        key = (self.paths[one], self.paths[other])
        distance = self._apart.get(key)
        if distance is None:
            distance = self._apart[key] = FACTOR ** (len(key[0]) - common(*key))
        return distance

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
    whole = Space([r[2] for r in rows], [r[0] for r in rows], [r[3] for r in rows], [r[4] for r in rows], Domain(), [])
    _grow_tree(whole, len(gang.levels))
    return whole


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
        s.chains.append([])
        for level, key in enumerate([(), *chain]):
            if key not in known:
                known[key] = Domain("/".join(part for part in key if part))
                parent.children.append(known[key])
                s.levels[level - 1].append(known[key])
            parent = known[key]
            s.chains[n].append(parent)
            parent.nodes.append(n)
            parent.capacity += len(s.capacity[n]) - 1
            parent.kept += s.kept[n]


@dataclass(slots=True)
class PlacementProblem:
    """A gang that is to be placed on a space. Pods are numbered: trainers by rank, then the rollouts of the minimum."""

    space: Space
    trainers: int
    rollouts: int
    """Number of rollouts of the gang's minimum."""
    fixed: dict[int, int]
    """Nodes of pods that stay, by pod: of all trainers or of none."""
    near: list[list[tuple[int, float]]]
    """By pod: the pods that it exchanges bytes with, and how many."""
    looked: int = 0
    """Number of costs that were looked up, by which the search is bounded."""

    @staticmethod
    def of(s: Space, gang: Gang, fixed: dict[int, int]) -> "PlacementProblem":
        count = gang.trainers + gang.minimum
        weights: dict[tuple[int, int], float] = {}
        for link in gang.links:
            if link.one < count and link.other < count:
                weights[link.one, link.other] = weights.get((link.one, link.other), 0.0) + link.bytes
        near: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for (a, b), volume in weights.items():
            near[a].append((b, volume))
            near[b].append((a, volume))
        return PlacementProblem(s, gang.trainers, gang.minimum, fixed, near)

    @property
    def loose(self) -> int:
        """Number of trainers that get a node or a rank: all or none."""
        return 0 if 0 in self.fixed else self.trainers

    @property
    def pods(self) -> int:
        return self.trainers + self.rollouts

    def at(self, pod: int, node: int, places: list[int], but: int = -1) -> float:
        """What a pod's links would cost if it were on a node, without those to unplaced pods (-1) and to the pod `but`."""
        self.looked += len(self.near[pod])
        return sum(
            volume * self.space.apart(node, places[other])
            for other, volume in self.near[pod]
            if other != but and places[other] >= 0
        )

    def cost(self, places: list[int]) -> float:
        return sum(self.at(pod, places[pod], places) for pod in range(self.pods)) / 2

    def is_trainer(self, pod: int) -> bool:
        return pod < self.trainers


@dataclass(slots=True)
class Places:
    """A placement: the node of each pod (-1: none yet), and the numbers of trainers and rollouts on each node."""

    problem: PlacementProblem
    of: list[int] = field(default_factory=list)
    trainers: dict[int, int] = field(default_factory=dict)
    rollouts: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def empty(problem: PlacementProblem) -> "Places":
        """The placement of only those pods that stay. They take no capacity, which counts further pods."""
        return Places(problem, [problem.fixed.get(pod, -1) for pod in range(problem.pods)])

    def copy(self) -> "Places":
        return Places(self.problem, list(self.of), dict(self.trainers), dict(self.rollouts))

    def put(self, pod: int, node: int) -> None:
        counts = self.trainers if self.problem.is_trainer(pod) else self.rollouts
        counts[node] = counts.get(node, 0) + 1
        self.of[pod] = node

    def take(self, pod: int) -> int:
        node, self.of[pod] = self.of[pod], -1
        counts = self.trainers if self.problem.is_trainer(pod) else self.rollouts
        counts[node] -= 1
        return node

    def has_capacity(self, pod: int, node: int) -> bool:
        """Whether one more pod of its kind fits there."""
        t, r = self.trainers.get(node, 0), self.rollouts.get(node, 0)
        more = (t + 1, r) if self.problem.is_trainer(pod) else (t, r + 1)
        return self.problem.space.fits(node, *more)

    def may_leave(self, pod: int) -> bool:
        """Whether a pod may be moved: as many trainers must be on a node as stay there."""
        node = self.of[pod]
        if self.problem.is_trainer(pod):
            return self.trainers[node] > self.problem.space.kept[node]
        return pod not in self.problem.fixed
