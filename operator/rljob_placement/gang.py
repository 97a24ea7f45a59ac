"""What a job needs of a cluster: so many pods of each role, on which nodes they may run, and who exchanges how much."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api import names
from rljob_api.quantity import Resources, show
from rljob_api.sizing.layout import required_rollout_pods, rollout_pods
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.sizing.traffic import Link, gang_links, links
from rljob_api.spec import RLJobSpec
from rljob_placement.cluster import Node, requests

Term = Mapping[str, Any]
"""One of a node affinity's required terms."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One pod of a role."""

    requests: Resources
    selector: Mapping[str, str]
    terms: tuple[Term, ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()

    @staticmethod
    def of(spec: RLJobSpec, role: str) -> "Demand":
        t = spec.template(role)
        affinity = (t.affinity or {}).get("nodeAffinity") or {}
        terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms", [])
        wanted = requests({"containers": [{"resources": spec.container_resources(role)}]})
        return Demand(wanted, t.node_selector, tuple(terms), tuple(t.tolerations))

    def refuses(self, node: Node) -> str:
        """Why the pod may not run on the node, however much is free there; empty if it may."""
        if node.closed:
            return node.closed
        untolerated = next((t for t in node.taints if not any(_tolerates(x, t) for x in self.tolerations)), None)
        if untolerated:
            return f"untolerated taint {untolerated['key']}"
        if not self.selector.items() <= node.labels.items():
            return "not matching nodeSelector"
        if self.terms and not any(_matches(term, node) for term in self.terms):
            return "not matching node affinity"
        return ""

    def __str__(self) -> str:
        """What people count: extended resources, else processors and memory."""
        named = {k: v for k, v in self.requests.items() if k != "pods"}
        chosen = {k: v for k, v in named.items() if "/" in k} or named
        return " and ".join(f"{show(v)} {k}" for k, v in chosen.items()) or "no request"


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers of a frozen model."""

    name: str
    replicas: int
    demand: Demand


@dataclass(frozen=True, slots=True)
class Gang:
    """Trainers are numbered by node rank from 0, rollouts continue after them; the first `minimum` of these belong to the gang, and so do all
    servers of the pools and all pods of the gangs of other models.

    Of such a gang the trainers are its own pods, and there is one rollout: the job's trainer of rank 0, which is there already."""

    trainers: int
    rollouts: int
    minimum: int
    trainer: Demand
    rollout: Demand
    links: tuple[Link, ...]
    levels: tuple[str, ...]
    """Label keys, widest first."""
    stages: int = 1
    """Pipeline stages."""
    pools: tuple[Pool, ...] = ()
    gangs: Mapping[str, "Gang"] = field(default_factory=dict)
    """Of other models, by role."""

    def demand(self, role: str) -> Demand:
        """Of one pod."""
        own = {names.ROLE_TRAINER: self.trainer, names.ROLE_ROLLOUT: self.rollout}
        own |= {name: gang.trainer for name, gang in self.gangs.items()}
        return own[role] if role in own else next(pool.demand for pool in self.pools if pool.name == role)

    @staticmethod
    def of(spec: RLJobSpec, shape: Shape = NOMINAL) -> "Gang":
        return Gang(
            trainers=spec.trainer.nodes,
            rollouts=rollout_pods(spec),
            minimum=required_rollout_pods(spec),
            trainer=Demand.of(spec, names.ROLE_TRAINER),
            rollout=Demand.of(spec, names.ROLE_ROLLOUT),
            links=tuple(links(spec, shape, rollout_pods(spec))),
            levels=tuple(spec.scheduling.topology_levels),
            stages=spec.trainer.parallelism.pipeline,
            pools=tuple(Pool(pool.name, pool.replicas, Demand.of(spec, pool.name)) for pool in spec.pools),
            gangs={role: Gang.of_role(spec, shape, role) for role in spec.gangs},
        )

    @staticmethod
    def of_role(spec: RLJobSpec, shape: Shape, role: str) -> "Gang":
        """Of another model."""
        trainer = spec.of_gang(role).trainer
        return Gang(
            trainers=trainer.nodes,
            rollouts=1,
            minimum=1,
            trainer=Demand.of(spec, role),
            rollout=Demand.of(spec, names.ROLE_TRAINER),
            links=tuple(gang_links(spec, shape, role)),
            levels=tuple(spec.scheduling.topology_levels),
            stages=trainer.parallelism.pipeline,
        )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """k8s.io/component-helpers/scheduling/corev1: an empty key with Exists tolerates all."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def _matches(term: Term, node: Node) -> bool:
    """All expressions of a term; an empty term matches nothing."""
    expressions, fields = term.get("matchExpressions", []), term.get("matchFields", [])
    about = {"metadata.name": node.name}
    holds = [_holds(e, node.labels) for e in expressions] + [_holds(e, about) for e in fields]
    return bool(holds) and all(holds)


def _holds(e: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator, values = labels.get(e["key"]), e["operator"], e.get("values", [])
    if operator in ("Gt", "Lt"):
        if value is None or not value.lstrip("-").isdigit():
            return False
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(operator, False)
