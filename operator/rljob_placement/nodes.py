"""Nodes of pods: of those that stay where they are, and of all pods in a plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api import names
from rljob_api.quantity import Resources, add
from rljob_placement.gang import Demand, Gang


@dataclass(frozen=True, slots=True)
class Stay:
    """Nodes of the pods that stay where they are."""

    trainers: Sequence[str] = ()
    """Nodes of trainers that stay, but may get other ranks."""
    ranks: Mapping[int, str] = field(default_factory=dict)
    """Nodes by rank, when all trainers stay as they are; then `trainers` is empty."""
    rollouts: Mapping[int, str] = field(default_factory=dict)
    """Nodes by number of the rollout, from 0."""
    spares: Mapping[int, str] = field(default_factory=dict)
    """Nodes by number of the spare."""
    pools: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Nodes by number of the server, for each pool."""
    gangs: Mapping[str, "Stay"] = field(default_factory=dict)
    """`trainers` or `ranks` of the other models' gangs, by role."""

    def servers(self, role: str) -> Mapping[int, str]:
        """Nodes of the rollouts, or of a pool's servers."""
        return self.rollouts if role == names.ROLE_ROLLOUT else self.pools.get(role, {})


@dataclass(frozen=True, slots=True)
class Plan:
    """The names of the nodes that pods are placed on."""

    trainers: tuple[str, ...] = ()
    """Nodes by node rank."""
    rollouts: tuple[str, ...] = ()
    """Nodes by number of the rollout; empty for one beyond the minimum that does not fit."""
    spares: tuple[str, ...] = ()
    """Nodes by number of the spare; empty for one that does not fit."""
    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes by number of the server, for each pool."""
    gangs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes by node rank, for the gang of each other model."""
    problem: str = ""
    """Why the gang cannot be placed; then there are no nodes."""
    cost: float = 0.0
    """What the links between trainers and rollouts cost: bytes per step, weighted by distance (see space.py)."""
    looked: int = 0
    """Number of costs that the search looked up."""

    def members(self, role: str) -> tuple[str, ...]:
        """Nodes of the trainer, or of another model's gang, by node rank."""
        return self.trainers if role == names.ROLE_TRAINER else self.gangs[role]

    def servers(self, role: str) -> tuple[str, ...]:
        """Nodes of the rollouts, or of a pool's servers."""
        return self.rollouts if role == names.ROLE_ROLLOUT else self.pools[role]

    def nodes(self) -> set[str]:
        """All nodes that the plan uses."""
        found = (self.trainers, self.spares, self.rollouts, *self.gangs.values(), *self.pools.values())
        return {node for nodes in found for node in nodes if node}

    def newcomers(self, gang: Gang, stay: Stay) -> Iterator[tuple[str, Demand]]:
        """Node and demand of each pod that had no node before."""
        yield from ((node, gang.trainer) for node in _fresh(self.trainers, stay))
        yield from ((node, gang.trainer) for i, node in enumerate(self.spares) if node and i not in stay.spares)
        for role, nodes in self.gangs.items():
            yield from ((node, gang.demand(role)) for node in _fresh(nodes, stay.gangs.get(role, Stay())))
        for role in (names.ROLE_ROLLOUT, *self.pools):
            for i, node in enumerate(self.servers(role)):
                if node and i not in stay.servers(role):
                    yield node, gang.demand(role)

    def taken(self, gang: Gang, stay: Stay) -> dict[str, Resources]:
        """Requests of the pods that had no node before, by node."""
        found: dict[str, Resources] = {}
        for node, demand in self.newcomers(gang, stay):
            found[node] = add(found.get(node, {}), demand.requests)
        return found


def _fresh(nodes: Sequence[str], stay: Stay) -> Iterator[str]:
    """Nodes of a gang, once for each of its pods that was not there before."""
    there = list(stay.ranks.values() or stay.trainers)
    for node in nodes:
        if node in there:
            there.remove(node)
        else:
            yield node
