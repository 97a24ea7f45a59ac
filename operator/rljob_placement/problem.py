"""A placement while it is being searched for: a node for every pod, what is used, and what it costs."""

from dataclasses import dataclass, field

from rljob_placement.gang import Gang
from rljob_placement.space import Space


@dataclass(slots=True)
class Problem:
    """The gang on the space. Pods: trainers by rank, then the rollouts that are placed with them."""

    space: Space
    trainers: int
    rollouts: int
    """Of the gang's minimum."""
    fixed: dict[int, int]
    """Pods that stay: node by pod. Of the trainers all or none."""
    near: list[list[tuple[int, float]]]
    """By pod: who it exchanges bytes with, and how many."""
    looked: int = 0
    """Costs that were looked up: what the search is bounded by, and measured in."""

    @staticmethod
    def of(s: Space, gang: Gang, fixed: dict[int, int]) -> "Problem":
        count = gang.trainers + gang.minimum
        weights: dict[tuple[int, int], float] = {}
        for link in gang.links:
            if link.one < count and link.other < count:
                weights[link.one, link.other] = weights.get((link.one, link.other), 0.0) + link.bytes
        near: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for (a, b), volume in weights.items():
            near[a].append((b, volume))
            near[b].append((a, volume))
        return Problem(s, gang.trainers, gang.minimum, fixed, near)

    @property
    def loose(self) -> int:
        """Trainers that are to be placed, or whose ranks are."""
        return 0 if 0 in self.fixed else self.trainers

    @property
    def pods(self) -> int:
        return self.trainers + self.rollouts

    def at(self, pod: int, node: int, places: list[int], but: int = -1) -> float:
        """What a pod's links cost if it were on a node; unplaced pods (-1) and one pod are left out."""
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
    """Nodes by pod, -1 where there is none yet, and counts by node."""

    problem: Problem
    of: list[int] = field(default_factory=list)
    trainers: dict[int, int] = field(default_factory=dict)
    rollouts: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def empty(problem: Problem) -> "Places":
        """Those that stay are there already, and take no room."""
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

    def room(self, pod: int, node: int) -> bool:
        """Whether one more pod of its kind fits there."""
        t, r = self.trainers.get(node, 0), self.rollouts.get(node, 0)
        more = (t + 1, r) if self.problem.is_trainer(pod) else (t, r + 1)
        return self.problem.space.fits(node, *more)

    def may_leave(self, pod: int) -> bool:
        """Not where a pod stays that nobody else would be."""
        node = self.of[pod]
        if self.problem.is_trainer(pod):
            return self.trainers[node] > self.problem.space.kept[node]
        return pod not in self.problem.fixed
