"""Clusters and gangs for tests."""

from collections.abc import Iterable, Sequence
from typing import Any

from api.specs import make_spec
from rljob_api.sizing.traffic import Link
from rljob_placement.cluster import Cluster
from rljob_placement.gang import Demand, Gang

GPU = "nvidia.com/gpu"


def make_node(name: str, gpus: int = 8, taints: Iterable[dict[str, str]] = (), **fields: Any) -> dict[str, Any]:
    """`fields`: labels, or `cordoned`, `ready`. Names of labels that end in `_` mean nothing else."""
    cordoned, ready = fields.pop("cordoned", False), fields.pop("ready", True)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | fields},
        "spec": {"taints": list(taints)} | ({"unschedulable": True} if cordoned else {}),
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def make_racks(sizes: Sequence[int], gpus: int = 8, racks_per_block: int = 2) -> list[dict[str, Any]]:
    """Nodes n<rack>-<i>, with labels block and rack."""
    return [
        make_node(f"n{r}-{i}", gpus, block=f"b{r // racks_per_block}", rack=f"r{r}")
        for r, size in enumerate(sizes)
        for i in range(size)
    ]


def make_pod(node: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    """Somebody else's."""
    container = {"resources": {"limits": {GPU: str(gpus)}}}
    return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}


def make_cluster(nodes: list[dict[str, Any]], pods: Sequence[dict[str, Any]] = ()) -> Cluster:
    return Cluster.of(nodes, pods)


def make_gang(nodes: int, pipeline: int = 1, rollouts: int = 0, **changes: Any) -> Gang:
    """Pods of 8 GPUs, tensor parallel 8, and rollouts of as many GPUs as `tensor`."""
    trainer = {"device": "gpu", "nodes": nodes, "processesPerNode": 8}
    parallel = {"parallelism": {"tensor": 8, "pipeline": pipeline} | changes.pop("parallelism", {})}
    pool = {"replicas": rollouts, "minReplicas": rollouts, "tensorParallel": 8} | changes.pop("rollout", {})
    scheduling = {"topologyLevels": ["block", "rack"]}
    train = {"steps": 10, "promptsPerStep": 64, "samplesPerPrompt": 8} | changes.pop("train", {})
    return Gang.of(make_spec(trainer=trainer | parallel | changes, rollout=pool, scheduling=scheduling, train=train))


def bare_gang(
    trainers: int, rollouts: int, gpus: tuple[int, int], links: Iterable[Link], levels: Sequence[str]
) -> Gang:
    """Any links at all."""
    each = [Demand({GPU: 1000 * g, "pods": 1000}, {}) for g in gpus]
    return Gang(trainers, rollouts, rollouts, each[0], each[1], tuple(links), tuple(levels))
