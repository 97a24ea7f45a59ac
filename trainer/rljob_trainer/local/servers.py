"""Servers of several pods on one machine: in which generation they run. What the operator does (policies/servers.py there), without nodes. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rljob_api.protocol import Report
from rljob_api.server_group import ServerGroup, ServerPart

Reports = Mapping[str, Report | None]
"""The latest report of each pod; None where there is none."""


@dataclass(frozen=True)
class LocalServer:
    """One server."""

    name: str
    pods: tuple[str, ...]
    """By rank."""
    generation: int = 0
    group: ServerGroup | None = None
    """Its parts in this generation; None: it has ended, and not all pods are there for the next."""

    def advance(self, seen: Reports, address: str, port: Callable[[], int]) -> "LocalServer":
        """The next state. All parts start again when one of them has failed, or its launcher has. `port`: a free one."""
        reports = [seen.get(pod) for pod in self.pods]
        if self.group and _runs(self.group, reports):
            return self
        there = [report for report in reports if report]
        if len(there) < len(self.pods):
            return LocalServer(self.name, self.pods, self.generation)
        parts = [
            ServerPart(pod=r.pod, pod_uid=r.pod_uid, boot_id=r.boot_id, address=address, node_rank=rank)
            for rank, r in enumerate(there)
        ]
        following = self.generation + 1
        group = ServerGroup(name=self.name, generation=following, parts=parts, master_port=port(), rpc_port=port())
        return LocalServer(self.name, self.pods, following, group)


def _runs(group: ServerGroup, reports: Sequence[Report | None]) -> bool:
    """A part that failed in an earlier generation may be reported late, and until the pod serves again."""
    return all(
        report and report.boot_id == part.boot_id and report.failed_generation != group.generation
        for part, report in zip(group.parts, reports, strict=True)
    )
