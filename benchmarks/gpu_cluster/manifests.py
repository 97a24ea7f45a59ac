"""What is applied to the cluster: the volumes that pods see, and the example's 126 M job in each layout. Pure.

python -m benchmarks.gpu_cluster.manifests volumes | kubectl apply -f -
"""

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from e2e.job import EXAMPLES, Object, merge

NAMESPACE = "gpu"
IMAGE = "rljob.dev/trainer:gpu"
COLOCATED = {"placement": "colocated", "replicas": 0, "minReplicas": 0, "vllmArgs": {"gpu-memory-utilization": 0.4}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "colocated": {"rollout": COLOCATED},
    "separate": {},
    "two-pods": {"rollout": COLOCATED, "trainer": {"nodes": 2}},
    "tensor-parallel": {"rollout": COLOCATED, "trainer": {"processesPerNode": 2, "parallelism": {"tensor": 2}}},
}
"""Changes of examples/arithmetic/gpu.yaml: one GPU; one trains and one generates; data parallel in two pods; tensor parallel in one."""
CPU, REHEARSED_GPU = "cpu", "rljob.dev/rehearsed-gpu"
REHEARSAL: dict[str, Any] = {
    "rollout": {"placement": "colocated", "replicas": 0, "minReplicas": 0, "template": None},
    "trainer": {
        "nodes": 1,
        "parallelism": None,
        "template": {"resources": {"limits": {"memory": "7Gi", REHEARSED_GPU: 1}}},
    },
}
"""Changes of examples/arithmetic/rljob.yaml: the same steps on a machine without GPUs. `up 0` says that it has one, so that jobs wait for it."""


def job(layout: str, name: str, steps: int, mounts: dict[str, tuple[str, str]], **changes: Any) -> Object:
    """The example `layout` under `name`, with every mount as a volume. Its run is below /data/NAME."""
    file, layout_changes = ("rljob.yaml", REHEARSAL) if layout == CPU else ("gpu.yaml", LAYOUTS[layout])
    manifest: Object = yaml.safe_load((EXAMPLES / "arithmetic" / file).read_text())
    manifest["metadata"] = {"name": name, "namespace": NAMESPACE}
    ours = {
        "image": IMAGE,
        "train": {"steps": steps},
        "checkpoint": {"path": f"/data/{name}", "everySteps": 10},
        "volumes": [volume("data", "/data", False), *(volume(n, path, True) for n, (_, path) in mounts.items())],
    }
    for change in (layout_changes, ours, changes):
        manifest["spec"] = merge(manifest["spec"], change)
    return manifest


def volume(name: str, path: str, read_only: bool) -> Object:
    source = {"persistentVolumeClaim": {"claimName": name}}
    return {"name": name, "mountPath": path, "readOnly": read_only, "source": source}


def mounts_of(text: str) -> dict[str, tuple[str, str]]:
    """POD_MOUNTS of settings.sh: by name, the machine's directory and the path in pods."""
    pairs = (entry.split("=", 1) for entry in text.split())
    return {name: (place.split(":")[0], place.split(":")[1]) for name, place in pairs}


def volumes(mounts: dict[str, tuple[str, str]], data: str) -> list[Object]:
    """A claim for each: pods under the restricted standard may mount claims, and no directory of the node."""
    found = [claim("data", data, "ReadWriteMany")]
    for name, (directory, _) in mounts.items():
        found += [claim(name, directory, "ReadOnlyMany")]
    return [item for pair in found for item in pair]


def claim(name: str, directory: str, mode: str) -> tuple[Object, Object]:
    common = {"accessModes": [mode], "storageClassName": "directory"}
    persistent: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": "100Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(Path(directory).absolute()), "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": name},
        },
    }
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": "10Gi"}}},
    }
    return persistent, wanted


if __name__ == "__main__":
    given = mounts_of(os.environ["POD_MOUNTS"])
    what, *rest = sys.argv[1:]
    objects = volumes(given, os.environ["DATA"]) if what == "volumes" else [job(what, rest[0], 20, given)]
    print(yaml.safe_dump_all(objects))
