"""Nodes by pod: of those that stay where they are, and of all by a plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api import names
from rljob_api.quantity import Resources, add
from rljob_placement.gang import Demand, Gang


@dataclass(frozen=True, slots=True)
class Stay:
    """Pods of the gang that are on nodes and stay there."""

    trainers: Sequence[str] = ()
    """Nodes of trainers whose ranks are planned again."""
    ranks: Mapping[int, str] = field(default_factory=dict)
    """Nodes by rank, when all trainers stay as they are; then `trainers` is empty."""
    rollouts: Mapping[int, str] = field(default_factory=dict)
    """Node by number, from 0."""
    pools: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The same for each pool."""
    gangs: Mapping[str, "Stay"] = field(default_factory=dict)
    """Trainers or ranks of the gang of each other model."""

    def servers(self, role: str) -> Mapping[int, str]:
        """Of rollouts or of a pool."""
        return self.rollouts if role == names.ROLE_ROLLOUT else self.pools.get(role, {})


@dataclass(frozen=True, slots=True)
class Plan:
    """Node names."""

    trainers: tuple[str, ...] = ()
    """By node rank."""
    rollouts: tuple[str, ...] = ()
    """By number; empty where there is no room for a further one."""
    pools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By number, for each pool."""
    gangs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By node rank, for the gang of each other model."""
    problem: str = ""
    """Why the gang cannot be placed; then there are no nodes."""
    cost: float = 0.0
    looked: int = 0
    """Costs that the search looked up."""

    def members(self, role: str) -> tuple[str, ...]:
        """Of the trainer or of another gang."""
        return self.trainers if role == names.ROLE_TRAINER else self.gangs[role]

    def servers(self, role: str) -> tuple[str, ...]:
        """Of rollouts or of a pool."""
        return self.rollouts if role == names.ROLE_ROLLOUT else self.pools[role]

    def nodes(self) -> set[str]:
        """All that are used."""
        found = (self.trainers, self.rollouts, *self.gangs.values(), *self.pools.values())
        return {node for nodes in found for node in nodes if node}

    def newcomers(self, gang: Gang, stay: Stay) -> Iterator[tuple[str, Demand]]:
        """Node and demand of each pod that had no node before."""
        yield from ((node, gang.trainer) for node in _fresh(self.trainers, stay))
        for role, nodes in self.gangs.items():
            yield from ((node, gang.demand(role)) for node in _fresh(nodes, stay.gangs.get(role, Stay())))
        for role in (names.ROLE_ROLLOUT, *self.pools):
            for i, node in enumerate(self.servers(role)):
                if node and i not in stay.servers(role):
                    yield node, gang.demand(role)

    def taken(self, gang: Gang, stay: Stay) -> dict[str, Resources]:
        """By node: what they request."""
        found: dict[str, Resources] = {}
        for node, demand in self.newcomers(gang, stay):
            found[node] = add(found.get(node, {}), demand.requests)
        return found


def _fresh(nodes: Sequence[str], stay: Stay) -> Iterator[str]:
    """Of a gang's nodes, once for each pod that was not there."""
    there = list(stay.ranks.values() or stay.trainers)
    for node in nodes:
        if node in there:
            there.remove(node)
        else:
            yield node
