"""Kueue's controller as a process beside a control plane: what its manifests would install, with the rights that they give it.

    python -m e2e.kueue    # compiles what is needed; RLJOB_KUEUE=0.18 another release

Kueue reads the certificate of its metrics from a fixed place in /etc, so it runs in a mount namespace of its own, where that is ours.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import COMPONENTS, KUEUE, KWOK, build, is_built
from e2e.cluster.steps import BIN
from e2e.control_plane import free_ports
from e2e.controllers import (
    Plane,
    certificates,
    configuration,
    grant,
    install_crd,
    install_hooks,
    login,
    source,
    until_ready,
)

QUEUE = "team"
NAMESPACE, ACCOUNT = "kueue-system", "kueue-controller-manager"
API, VERSION = "/apis/kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta2"
ROLES = ("role", "manager_secrets_role")
HOOKED = ("v1-pod", "statefulset", "batch-v1-job", "kueue-x-k8s-io")
"""Webhooks by their path: of the kinds that we or Kueue make."""


def start(plane: Plane, **settings: Any) -> None:
    """With these sections of Kueue's configuration."""
    hook, health = free_ports(2)
    keys = certificates(plane.directory / "etc" / "kueue" / "metrics" / "certs")
    for crd in sorted((_manifests() / "crd" / "bases").glob("*.yaml")):
        install_crd(plane, crd)
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for file in ROLES:
        role = yaml.safe_load((_manifests() / "rbac" / f"{file}.yaml").read_text())
        grant(plane, role, NAMESPACE, ACCOUNT)
    config = plane.directory / "kueue.yaml"
    config.write_text(yaml.safe_dump(_configuration(hook, health, keys) | settings))
    mount = f"mount -t overlay overlay -o lowerdir={plane.directory}/etc:/etc /etc"
    # its API for pending workloads wants a certificate at another fixed place
    account = login(plane, "kueue", NAMESPACE, ACCOUNT)
    flags = f"--config={config} --kubeconfig={account} --feature-gates=VisibilityOnDemand=false"
    plane.spawn("kueue", *plane.prefix, "unshare", "--mount", "sh", "-c", f"{mount} && exec {BIN / KUEUE.name} {flags}")
    until_ready(plane, "kueue", health)
    manifests = _manifests() / "webhook" / "manifests.yaml"
    install_hooks(plane, "kueue", manifests, hook, (keys / "tls.crt").read_bytes(), parts=HOOKED)


def open_cluster(
    plane: Plane, quota: dict[str, str], levels: Sequence[str] = (), nodes: dict[str, str] | None = None
) -> None:
    """A quota for all namespaces, on nodes with these labels, whose topology is made of `levels`. Jobs of higher priority preempt others."""
    flavor: dict[str, Any] = {"nodeLabels": nodes or {}} | ({"topologyName": "default"} if levels else {})
    if levels:
        topology = {"metadata": {"name": "default"}, "spec": {"levels": [{"nodeLabel": level} for level in levels]}}
        _create(plane, f"{API}/topologies", "Topology", topology)
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "all", "resources": resources}]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption}
    _create(plane, f"{API}/resourceflavors", "ResourceFlavor", {"metadata": {"name": "all"}, "spec": flavor})
    _create(plane, f"{API}/clusterqueues", "ClusterQueue", {"metadata": {"name": "all"}, "spec": queue})


def open_queue(plane: Plane, namespace: str) -> None:
    """For the jobs of a namespace."""
    queue = {"metadata": {"name": QUEUE}, "spec": {"clusterQueue": "all"}}
    _create(plane, f"{API}/namespaces/{namespace}/localqueues", "LocalQueue", queue)


def workloads(plane: Plane, namespace: str) -> list[dict[str, Any]]:
    """What Kueue makes of pods."""
    found: list[dict[str, Any]] = plane.call("GET", f"{API}/namespaces/{namespace}/workloads")["items"]
    return found


def is_admitted(workload: dict[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions)


def _manifests() -> Path:
    return source(KUEUE, "sigs.k8s.io/kueue") / "config" / "components"


def _configuration(hook: int, health: int, keys: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((_manifests() / "manager" / "controller_manager_config.yaml").read_text())
    integrations = {"frameworks": ["batch/job", "pod", "statefulset"]}
    return raw | configuration(hook, health, keys) | {"integrations": integrations}


def _create(plane: Plane, where: str, kind: str, body: dict[str, Any]) -> None:
    plane.call("POST", where, body | {"apiVersion": VERSION, "kind": kind})


if __name__ == "__main__":
    BIN.mkdir(parents=True, exist_ok=True)
    for component in (*COMPONENTS, KWOK, KUEUE):
        if not is_built(component):
            build(component)
