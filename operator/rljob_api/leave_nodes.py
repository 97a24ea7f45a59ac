"""Signs by which the owner of a node says that jobs should leave it: a cordon, taints, conditions, and objects that ask for it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.text import one_line

TAINTS = [
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "karpenter.sh/disrupted",
    "nvidia.com/gpu-error",
    "nvidia.com/gpu-nvlink-error",
    "nvidia.com/gpu-xid-error",
    "nvidia.com/syslog-xid-error",
    "remediator.kubernetes.azure.com/unschedulable",
]
CONDITIONS = [
    "AcceleratedHardwareReady=False",
    "CSPMaintenance",
    "GpuDriverWatch",
    "GpuInforomWatch",
    "GpuMcuWatch",
    "GpuMemWatch",
    "GpuNvlinkWatch",
    "GpuPcieWatch",
    "GpuPmuWatch",
    "GpuSmWatch",
    "GpuXidError",
    "KernelDeadlock",
    "NVSwitchDown",
    "NVSwitchFatalError",
    "ReadonlyFilesystem",
    "SysLogsGPUFallenOff",
    "SysLogsSXIDError",
    "SysLogsXIDError",
]
REQUESTS = [
    "drainrequests.v1alpha1.nvsentinel.nvidia.com",
    "nodemaintenances.v1beta1.nodemaintenance.medik8s.io",
]
"""Defaults; docs/failures.md names the tool behind each."""
DONE = "DrainComplete"
"""Condition of a request for a node, by which it is done."""
EFFECTS = ("NoSchedule", "NoExecute")
LONGEST = 200
"""Characters of a sign: whoever may write nodes may write any name."""

TaintKey = Annotated[str, StringConstraints(min_length=1, max_length=317)]
NodeCondition = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9./_-]+(=(True|False|Unknown))?$", max_length=317)]
Resource = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9-]*\.v[0-9][a-z0-9]*(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$", max_length=253),
]
"""`RESOURCE.VERSION.GROUP`, as kubectl takes it."""


class LeaveNodes(Model):
    """What counts as such a sign."""

    cordoned: bool = True
    """Whether jobs leave nodes that are cordoned."""
    taints: Annotated[list[TaintKey], Field(max_length=256)] = TAINTS
    """Keys of taints, with the effect NoSchedule or NoExecute, whose nodes jobs leave."""
    conditions: Annotated[list[NodeCondition], Field(max_length=256)] = CONDITIONS
    """Conditions whose nodes jobs leave: a type that is True, or `TYPE=STATUS`."""
    requests: Annotated[list[Resource], Field(max_length=16)] = REQUESTS
    """Kinds of objects that ask for a node, which they name in `spec.nodeName`, to be left."""

    @cached_property
    def _listed(self) -> frozenset[str]:
        """The conditions. Every node reports its own every few minutes."""
        return frozenset(self.conditions)

    @cached_property
    def _types(self) -> frozenset[str]:
        """Of the conditions. Most of a node's are of no such type."""
        return frozenset(listed.partition("=")[0] for listed in self.conditions)

    def quarantine(self, node: Mapping[str, Any]) -> str:
        """Why jobs should leave a node, by its object; empty: they need not. Without times, which change while nothing else does."""
        signs = list(self._signs(node))
        return reason(signs) if signs else ""

    def _signs(self, node: Mapping[str, Any]) -> Iterator[str]:
        spec, status = node.get("spec") or {}, node.get("status") or {}
        if self.cordoned and spec.get("unschedulable"):
            yield "cordoned"
        for taint in spec.get("taints") or []:
            if taint.get("key") in self.taints and taint.get("effect") in EFFECTS:
                yield f"taint {taint['key']}"
        for condition in status.get("conditions") or []:
            kind, value = condition.get("type", ""), condition.get("status", "")
            if kind not in self._types:
                continue
            if f"{kind}={value}" in self._listed or (value == "True" and kind in self._listed):
                yield f"condition {kind}" + ("" if value == "True" else f"={value}")


def reason(signs: Iterable[str]) -> str:
    """All signs, on one line of at most LONGEST characters."""
    return ", ".join(filter(None, (one_line(sign)[:LONGEST] for sign in signs)))[:LONGEST]


def requested_node(request: Mapping[str, Any]) -> str:
    """The node that an object asks to be left, by its JSON; empty: it names none, or is done or being deleted."""
    conditions = (request.get("status") or {}).get("conditions") or []
    done = any(c.get("type") == DONE and c.get("status") == "True" for c in conditions)
    if done or "deletionTimestamp" in request["metadata"]:
        return ""
    node = (request.get("spec") or {}).get("nodeName")
    return node if isinstance(node, str) else ""
