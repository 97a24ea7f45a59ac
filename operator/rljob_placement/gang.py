"""What a job needs of a cluster: the number of pods of each role, the nodes that they may run on, and how much they exchange.
And the nodes of pods: of those that stay where they are, and of all pods in a plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from rljob_api import names
from rljob_api.quantity import Thousandths, add, show
from rljob_api.sizing.layout import required_rollout_pods, rollout_pods
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.sizing.traffic import Link, gang_links, links
from rljob_api.spec import RLJobSpec
from rljob_placement.affinity import Affinity, NodeSelectorTerm
from rljob_placement.cluster import Node, requests

NO_DEVICES: Mapping[str, Thousandths] = {}


@dataclass(frozen=True, slots=True)
class Demand:
    """What each pod of a role requests, and what it demands of its node."""

    requests: Thousandths
    selector: Mapping[str, str]
    terms: tuple[NodeSelectorTerm, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Affinity = field(init=False, compare=False, repr=False)
    """The terms, compiled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "affinity", Affinity(self.terms))

    @staticmethod
    def of(spec: RLJobSpec, role: str, devices: Mapping[str, Thousandths] = NO_DEVICES) -> "Demand":
        """`devices`: what claims take besides, by role."""
        t = spec.template(role)
        affinity = (t.affinity or {}).get("nodeAffinity") or {}
        terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms", [])
        wanted = requests({"containers": [{"resources": spec.container_resources(role)}]})
        wanted = add(wanted, dict(devices.get(role, {})))
        return Demand(wanted, t.node_selector, tuple(terms), tuple(t.tolerations))

    def refuses(self, node: Node) -> str:
        """Why the pod may not run on the node, whatever is free there; empty: it may."""
        if node.closed:
            return node.closed
        untolerated = next((t for t in node.taints if not any(_tolerates(x, t) for x in self.tolerations)), None)
        if untolerated:
            return f"untolerated taint {untolerated['key']}"
        unlike = next((key for key, value in self.selector.items() if node.labels.get(key) != value), "")
        if unlike:
            return f"without label {unlike}={self.selector[unlike]} of nodeSelector"
        if self.terms and not self.affinity.matches(node):
            return "not matching node affinity"
        return ""

    def __str__(self) -> str:
        """The requests that matter to people: extended resources, or without any, cpu and memory."""
        named = {k: v for k, v in self.requests.items() if k != "pods"}
        chosen = {k: v for k, v in named.items() if "/" in k} or named
        return " and ".join(f"{show(v)} {k}" for k, v in chosen.items()) or "no request"


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers of a frozen model; or rollouts, where each consists of several pods."""

    name: str
    replicas: int
    demand: Demand
    nodes: int = 1
    """Pods of each server."""

    @property
    def pods(self) -> int:
        return self.replicas * self.nodes


@dataclass(frozen=True, slots=True)
class Gang:
    """All pods of a job. Trainers are numbered by node rank from 0, and rollouts after them. Trainers, the first `minimum` rollouts, all servers of
    pools and all pods of other models' gangs are placed together or not at all.

    Pods of one server follow each other. Servers of several pods are placed whole, or not at all.

    A gang of another model is one as well: its own pods are the `trainers`, and the job's trainer of rank 0, which has a node already, is its only
    rollout.
    """

    trainers: int
    rollouts: int
    minimum: int
    trainer: Demand
    rollout: Demand
    links: tuple[Link, ...]
    levels: tuple[str, ...]
    """Label keys of the topology levels, widest first."""
    stages: int = 1
    """Number of pipeline stages."""
    pools: tuple[Pool, ...] = ()
    gangs: Mapping[str, "Gang"] = field(default_factory=dict)
    """Gangs of other models, by role."""
    spares: int = 0
    """Pods like the trainers that get what the others leave."""
    nodes: int = 1
    """Pods of each rollout."""
    within: int = 0
    """Number of levels, from the widest on, that all pods share; 0: none has to be shared."""

    @property
    def servers(self) -> tuple[Pool, ...]:
        """What is placed server by server: pools, and the rollouts of the minimum where each consists of several pods."""
        minimum = self.minimum // self.nodes
        return (*([Pool(names.ROLE_ROLLOUT, minimum, self.rollout, self.nodes)] if self.nodes > 1 else []), *self.pools)

    def demand(self, role: str) -> Demand:
        """What each pod of a role needs."""
        own = {names.ROLE_TRAINER: self.trainer, names.ROLE_ROLLOUT: self.rollout}
        own |= {name: gang.trainer for name, gang in self.gangs.items()}
        return own[role] if role in own else next(pool.demand for pool in self.pools if pool.name == role)

    @staticmethod
    def of(spec: RLJobSpec, shape: Shape = NOMINAL, devices: Mapping[str, Thousandths] = NO_DEVICES) -> "Gang":
        """`devices`: what claims of each pod take besides, by role."""
        demand = cache(partial(Demand.of, spec, devices=devices))
        return Gang(
            trainers=spec.trainer.nodes,
            rollouts=rollout_pods(spec),
            minimum=required_rollout_pods(spec),
            trainer=demand(names.ROLE_TRAINER),
            rollout=demand(names.ROLE_ROLLOUT),
            links=tuple(links(spec, shape, rollout_pods(spec))),
            levels=tuple(spec.scheduling.topology_levels),
            stages=spec.trainer.parallelism.pipeline,
            pools=tuple(Pool(pool.name, pool.replicas, demand(pool.name), pool.nodes) for pool in spec.asked_pools),
            gangs={role: Gang.of_role(spec, shape, role, demand) for role in spec.gangs},
            spares=spec.scheduling.spare_nodes,
            nodes=spec.rollout.nodes,
            within=_within(spec),
        )

    @staticmethod
    def of_role(spec: RLJobSpec, shape: Shape, role: str, demand: Callable[[str], Demand]) -> "Gang":
        """The gang of another model. `demand`: of each role."""
        ranks = spec.ranks_of(role)
        return Gang(
            trainers=ranks.nodes,
            rollouts=1,
            minimum=1,
            trainer=demand(role),
            rollout=demand(names.ROLE_TRAINER),
            links=tuple(gang_links(spec, shape, role)),
            levels=tuple(spec.scheduling.topology_levels),
            stages=ranks.parallelism.pipeline,
        )


def _within(spec: RLJobSpec) -> int:
    level, levels = spec.scheduling.required_level, spec.scheduling.topology_levels
    return levels.index(level) + 1 if level in levels else 0


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """As Toleration.ToleratesTaint of k8s.io/api/core/v1: an empty key with Exists tolerates every taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


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
class Placement:
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
        groups = (self.trainers, self.spares, self.rollouts, *self.gangs.values(), *self.pools.values())
        return {node for nodes in groups for node in nodes if node}

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

    def taken(self, gang: Gang, stay: Stay) -> dict[str, Thousandths]:
        """Requests of the pods that had no node before, by node."""
        by_node: dict[str, Thousandths] = {}
        for node, demand in self.newcomers(gang, stay):
            by_node[node] = add(by_node.get(node, {}), demand.requests)
        return by_node


def _fresh(nodes: Sequence[str], stay: Stay) -> Iterator[str]:
    """Nodes of a gang, once for each of its pods that was not there before."""
    there = list(stay.ranks.values() or stay.trainers)
    for node in nodes:
        if node in there:
            there.remove(node)
        else:
            yield node
