"""Where the pods of a job would be placed on the live cluster now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import batched
from typing import Any

from kubectl_rljob.errors import UserError
from kubectl_rljob.planning import Plan
from rljob_api import names
from rljob_api.placement_status import PlacementReport
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_placement.cluster import Cluster
from rljob_placement.explain import lacking_further, report
from rljob_placement.gang import Gang
from rljob_placement.gang import Plan as Placed
from rljob_placement.plan import plan

Read = Callable[[], tuple[list[dict[str, Any]], list[dict[str, Any]]]]
"""Nodes, and pods of all namespaces. Raises UserError."""


@dataclass(frozen=True)
class Preview:
    """Where the pods of a job would go, or why that is not known."""

    skipped: str = ""
    """Why placement was not checked."""
    problem: str = ""
    """Why there is no capacity."""
    nodes: int = 0
    report: PlacementReport = field(default_factory=PlacementReport)
    servers: Mapping[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """Nodes of the pods of each server, where servers have several, by role."""
    lacking: str = ""
    """Why further rollouts have no place; empty: all have one."""
    nominal: bool = False
    """Bytes are of a model of 8 billion parameters, for want of the job's config.json."""

    def dump(self) -> dict[str, Any]:
        if self.skipped:
            return {"skipped": self.skipped}
        if self.problem:
            return {"problem": self.problem}
        found = {"nodes": self.nodes, **self.report.dump(), "nominal": self.nominal}
        return found | {"servers": dict(self.servers), "lacking": self.lacking}


def preview(job: Plan, read: Read, offline: bool) -> Preview:
    """Placement by the built-in scheduler; the choices of others cannot be predicted."""
    if job.spec is None or job.violations:
        return Preview(skipped="not checked before every rule holds")
    if not job.spec.scheduling.facts.assigns_nodes:
        return Preview(skipped=f"left to spec.scheduling.backend {job.spec.scheduling.backend}")
    if offline:
        return Preview(skipped="not checked (--offline)")
    try:
        cluster = Cluster.of(*read())
    except UserError as error:
        return Preview(skipped=f"not checked: {error}")
    shape = Shape.of(job.model) if job.model else None
    gang = Gang.of(job.spec, shape or NOMINAL)
    found = plan(cluster, gang)
    if found.problem:
        return Preview(problem=found.problem)
    return Preview(
        nodes=len(found.nodes()),
        report=report(cluster, gang, found),
        servers=_servers(gang, found),
        lacking=lacking_further(cluster, gang, found),
        nominal=shape is None,
    )


def _servers(gang: Gang, found: Placed) -> dict[str, list[tuple[str, ...]]]:
    pods = {names.ROLE_ROLLOUT: gang.nodes} | {pool.name: pool.nodes for pool in gang.pools}
    return {role: list(batched(found.servers(role), each)) for role, each in pods.items() if each > 1}
