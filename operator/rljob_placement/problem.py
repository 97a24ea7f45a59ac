"""A placement while it is being searched for: a node for every pod, what is used, and what it costs."""

from dataclasses import dataclass, field

from rljob_placement.gang import Gang
from rljob_placement.space import Space


@dataclass(slots=True)
class Problem:
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

    problem: Problem
    of: list[int] = field(default_factory=list)
    trainers: dict[int, int] = field(default_factory=dict)
    rollouts: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def empty(problem: Problem) -> "Places":
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
