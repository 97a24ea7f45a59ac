"""Two nodes for one job, which a test takes from it by turns."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.conftest import Lab
from e2e.kube import Object
from e2e.prepare import workbench


@contextmanager
def home_and_away(lab: Lab) -> Iterator[tuple[str, str]]:
    """One node with the operator and the tests' own pods, and an empty one that takes no pods yet."""
    if lab.provider.name == "existing":
        pytest.skip("its nodes are left alone")
    workers = sorted(n["metadata"]["name"] for n in lab.kube.list("node", "!node-role.kubernetes.io/control-plane"))
    home, away = workers[:2]
    drain(lab, away)
    workbench(lab.kube, lab.provider)
    lab.system.kubectl("rollout", "status", "deployment/rljob", "--timeout=120s", timeout=150)
    try:
        yield home, away
    finally:
        lab.provider.start_node(away)
        lab.kube.kubectl("uncordon", home, away)


def memory(node: Object, percent: int) -> Object:
    """Resources of a container that takes this share of the node's memory, so that few of them fit onto it."""
    allocatable = int(node["status"]["allocatable"]["memory"].removesuffix("Ki"))
    share = f"{allocatable * percent // 100}Ki"
    return {"requests": {"cpu": "100m", "memory": share}, "limits": {"memory": share}}


def drain(lab: Lab, node: str, selector: str = "") -> None:
    """Evict what runs there, or what `selector` means of it, and let nothing new come."""
    force = ("--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s")
    lab.kube.kubectl("drain", node, *force, f"--pod-selector={selector}", timeout=150)
