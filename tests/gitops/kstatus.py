"""kstatus' rules for a kind that it does not know (kubernetes-sigs/cli-utils, pkg/kstatus/status/generic.go), by which Flux and kpt wait."""

from typing import Any, Literal


def compute(obj: dict[str, Any]) -> Literal["Terminating", "InProgress", "Failed", "Current"]:
    status = obj.get("status", {})
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", obj["metadata"]["generation"]) != obj["metadata"]["generation"]:
        return "InProgress"
    for condition in status.get("conditions", []):
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return "InProgress"
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return "Failed"
    return "Current"
