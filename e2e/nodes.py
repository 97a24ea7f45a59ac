"""Two nodes for one job, which a test takes from it by turns."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.conftest import Lab
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


def drain(lab: Lab, node: str, selector: str = "") -> None:
    """Evict what runs there, or what `selector` means of it, and let nothing new come."""
    force = ("--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s")
    lab.kube.kubectl("drain", node, *force, f"--pod-selector={selector}", timeout=150)
