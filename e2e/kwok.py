"""KWOK beside a control plane: nodes of 8 GPUs and pods that only say that they run."""

from typing import Any

from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane

ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


def start(plane: ControlPlane) -> None:
    """Without leases the controller manager would take the nodes for lost, again and again."""
    flags = ("--manage-all-nodes=true", "--node-lease-duration-seconds=40")
    plane.spawn("kwok", BIN / "kwok", f"--kubeconfig={plane.kubeconfig}", *flags)


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """To be created; its host name is added to `labels`."""
    meta = {
        "name": name,
        "labels": labels | {"kubernetes.io/hostname": name},
        "annotations": {"kwok.x-k8s.io/node": "fake"},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": ROOM, "capacity": ROOM}}
