"""KWOK with a control plane: nodes of 8 GPUs, and pods that run in their status only."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane

ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}


HEARTBEAT = 300
"""Seconds between two statuses of a node in which nothing has changed, as kubelets have it. KWOK 0.7 with leases would write them every 20 s."""
CONDITIONS = """
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: ""
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ .metadata.creationTimestamp | Quote }}
"""


def start(plane: ControlPlane, of_pods: Iterable[Path] = ()) -> None:
    """Without leases the controller manager would take the nodes for lost, again and again.

    `of_pods`: files with the stages of pods; KWOK's own if there are none, which complete what belongs to a Job as soon as it runs.
    """
    config = plane.directory / "kwok.yaml"
    stages = [_stage("ready", "NotIn", 0), _stage("heartbeat", "In", HEARTBEAT)]
    config.write_text(yaml.safe_dump_all([*stages, *(yaml.safe_load(file.read_text()) for file in of_pods)]))
    flags = ("--manage-all-nodes=true", "--node-lease-duration-seconds=40", f"--config={config}")
    plane.spawn("kwok", BIN / "kwok", f"--kubeconfig={plane.kubeconfig}", *flags)


def _stage(name: str, ready: str, seconds: int) -> dict[str, Any]:
    """The status of a node, ready or not, is written again so long after the last time."""
    is_ready = {"key": '.status.conditions.[] | select( .type == "Ready" ) | .status', "operator": ready}
    spec = {
        "resourceRef": {"apiGroup": "v1", "kind": "Node"},
        "selector": {"matchExpressions": [is_ready | {"values": ["True"]}]},
        "delay": {"durationMilliseconds": 1000 * seconds},
        "next": {"statusTemplate": CONDITIONS},
    }
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def node(name: str, labels: dict[str, str]) -> dict[str, Any]:
    """To be created; its host name is added to `labels`."""
    meta = {
        "name": name,
        "labels": labels | {"kubernetes.io/hostname": name},
        "annotations": {"kwok.x-k8s.io/node": "fake"},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": ROOM, "capacity": ROOM}}
