"""Where a job would be placed on the live cluster, if the operator did it now."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubectl_rljob.errors import UserError
from kubectl_rljob.planning import Plan
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.status import PlacementReport
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Gang
from rljob_placement.plan import plan
from rljob_placement.report import report

Read = Callable[[], tuple[list[dict[str, Any]], list[dict[str, Any]]]]
"""Nodes, and pods of all namespaces. Raises UserError."""


@dataclass(frozen=True)
class Preview:
    """What came of it. Bytes are of the model whose config.json was given, else of one of 8 billion parameters."""

    skipped: str = ""
    """Why nothing was looked at."""
    problem: str = ""
    """Why there is no room."""
    nodes: int = 0
    report: PlacementReport = field(default_factory=PlacementReport)

    def dump(self) -> dict[str, Any]:
        if self.skipped:
            return {"skipped": self.skipped}
        return {"problem": self.problem} if self.problem else {"nodes": self.nodes, **self.report.dump()}


def preview(job: Plan, read: Read, offline: bool) -> Preview:
    """Only the backend `builtin` places pods itself."""
    if job.spec is None or job.violations:
        return Preview(skipped="not looked at before every rule holds")
    backend = job.spec.scheduling.backend
    if backend != "builtin":
        return Preview(skipped=f"left to {'the cluster' if backend == 'none' else backend} (spec.scheduling.backend)")
    if offline:
        return Preview(skipped="not looked at (--offline)")
    try:
        cluster = Cluster.of(*read())
    except UserError as error:
        return Preview(skipped=f"not looked at: {error}")
    gang = Gang.of(job.spec, (Shape.of(job.model) if job.model else None) or NOMINAL)
    found = plan(cluster, gang)
    if found.problem:
        return Preview(problem=found.problem)
    used = len({*found.trainers, *filter(None, found.rollouts)})
    return Preview(nodes=used, report=report(cluster, gang, found.trainers, found.rollouts))
