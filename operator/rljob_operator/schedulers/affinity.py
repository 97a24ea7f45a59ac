"""Node affinities of pods by the names of nodes."""

from collections.abc import Iterable, Mapping
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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
