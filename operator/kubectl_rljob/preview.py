"""Where the pods of a job would be placed on the live cluster now."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubectl_rljob.errors import UserError
from kubectl_rljob.planning import Plan
from rljob_api import names
from rljob_api.callbacks import never
from rljob_api.pod_patch import NO_PATCH, PodPatch
from rljob_api.sizing.shape import NOMINAL, Shape
from rljob_api.spec import RLJobSpec
from rljob_api.status_parts import PlacementReport, PlacementStatus
from rljob_placement.cluster import Cluster
from rljob_placement.devices import Claimed, Devices, claimed, uses_devices
from rljob_placement.explain import lacking_further, report
from rljob_placement.gang import Gang, Placement
from rljob_placement.plan import plan

Read = Callable[[], tuple[list[dict[str, Any]], list[dict[str, Any]]]]
"""Nodes, and pods of all namespaces. Raises UserError."""


NAMED = 5
"""Nodes that a sentence names."""


@dataclass(frozen=True)
class Site:
    """Where a job would go: the cluster as it is now, and what its administrator sets."""

    read: Read
    devices: Callable[[], tuple[Devices, str]]
    """Its devices, and the namespace that the job would be in. Raises UserError."""
    waiting: Callable[[], Iterable[tuple[str, PlacementStatus]]] = tuple
    """Namespace and name of jobs that wait for nodes, and what they wait for; none, if they may not be read."""
    patch: PodPatch = NO_PATCH

    def cluster(self, spec: RLJobSpec) -> tuple[Cluster, Claimed]:
        """The cluster with its devices, if the job wants any, and what its claims take. Raises UserError."""
        bare = Cluster.of(*self.read())
        offered = {name for node in bare.nodes for name, amount in node.size.items() if amount}.__contains__
        if not uses_devices(spec, self.patch, never):
            return bare, Claimed()
        try:
            devices, namespace = self.devices()
        except UserError:  # who may not list devices plans with what nodes offer themselves, if they do
            if uses_devices(spec, self.patch, offered):
                raise
            return bare, Claimed()
        return bare.offering(devices), claimed(spec, self.patch, namespace, devices, offered)


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
    reserved: Sequence[str] = ()
    """Who else waits for nodes of this placement, and until when these are kept, a sentence for each."""
    nominal: bool = False
    """Bytes are of a model of 8 billion parameters, for want of the job's config.json."""

    def dump(self) -> dict[str, Any]:
        if self.skipped:
            return {"skipped": self.skipped}
        if self.problem:
            return {"problem": self.problem}
        out = {"nodes": self.nodes, **self.report.dump(), "nominal": self.nominal}
        return out | {"servers": dict(self.servers), "lacking": self.lacking, "reserved": [*self.reserved]}


def preview(job: Plan, site: Site, offline: bool) -> Preview:
    """Placement by the built-in scheduler; the choices of others cannot be predicted."""
    if job.spec is None or job.violations:
        return Preview(skipped="not checked before every rule holds")
    if not job.spec.scheduling.facts.assigns_nodes:
        return Preview(skipped=f"left to spec.scheduling.backend {job.spec.scheduling.backend}")
    if offline:
        return Preview(skipped="not checked (--offline)")
    try:
        cluster, taken = site.cluster(job.spec)
    except UserError as error:
        return Preview(skipped=f"not checked: {error}")
    shape = Shape.of(job.model) if job.model else None
    gang = Gang.of(job.spec, shape or NOMINAL, taken.by_role)
    placed = plan(cluster, gang)
    if problem := taken.problem or placed.problem:
        return Preview(problem=problem)
    return Preview(
        nodes=len(placed.nodes()),
        report=report(cluster, gang, placed),
        servers=_servers(gang, placed),
        lacking=lacking_further(cluster, gang, placed),
        reserved=[*_reserved(site.waiting(), job.name, placed.nodes())],
        nominal=shape is None,
    )


def _reserved(waiting: Iterable[tuple[str, PlacementStatus]], job: str, nodes: Collection[str]) -> Iterator[str]:
    """`job`: the name of the one that is planned."""
    for other, placement in waiting:
        kept = sorted({*placement.reserved} & {*nodes})
        if kept and other.rpartition("/")[2] != job:
            until = f"expected at {placement.expected_at}" if placement.expected_at else "nobody knows until when"
            more = f" and {len(kept) - NAMED} more" if kept[NAMED:] else ""
            yield f"{', '.join(kept[:NAMED])}{more} reserved for {other}, which waits since {placement.waiting_since} ({until})"


def _servers(gang: Gang, placed: Placement) -> dict[str, list[tuple[str, ...]]]:
    pods = {names.ROLE_ROLLOUT: gang.nodes} | {pool.name: pool.nodes for pool in gang.pools}
    return {role: _split(placed.servers(role), each) for role, each in pods.items() if each > 1}


def _split(nodes: tuple[str, ...], each: int) -> list[tuple[str, ...]]:
    return [nodes[i : i + each] for i in range(0, len(nodes), each)]
