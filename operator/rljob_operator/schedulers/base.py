"""The interface of scheduler backends, and affinities of pods by the names of nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api.spec import RLJobSpec
from rljob_api.status import RLJobMeta
from rljob_operator.cache.nodes import REQUIRED

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Additions to a pod template."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    """Fields of the pod's spec."""


class Scheduler:
    """One backend. Pure: its answers follow from the job alone. The defaults add nothing, which leaves pods to the cluster's own scheduler. What is
    known of it without its code is in rljob_api/backends.py."""

    def pod_settings(self, job: RLJobMeta, spec: RLJobSpec, role: str) -> PodSettings:
        """What to add to the pod template of a role."""
        return PodSettings()

    def objects(self, job: RLJobMeta, spec: RLJobSpec) -> list[Object]:
        """Objects to create alongside the StatefulSets: apiVersion, kind, metadata.name and body. Labels and owner are added by `render`."""
        return []


def pinned(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The affinity, which only this node satisfies. DaemonSets pin their pods so, too."""
    return _with_names(affinity, [("In", node)])


def avoiding(affinity: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """The affinity, which none of these nodes satisfies."""
    return _with_names(affinity, [("NotIn", node) for node in sorted(nodes)])


def _with_names(affinity: Mapping[str, Any], names: list[tuple[str, str]]) -> dict[str, Any]:
    """The affinity with a further condition for each name (the API server takes one name in each) in every required term, since terms are
    alternatives."""
    conditions = [{"key": "metadata.name", "operator": operator, "values": [name]} for operator, name in names]
    of_nodes = affinity.get("nodeAffinity", {})
    terms = of_nodes.get(REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*term.get("matchFields", []), *conditions]} for term in terms]
    return {**affinity, "nodeAffinity": of_nodes | {REQUIRED: {"nodeSelectorTerms": terms}}}
