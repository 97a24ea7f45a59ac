"""Kueue's controller as a process beside a control plane: what its manifests would install, with one queue over all nodes.

    python -m e2e.kueue    # compiles what is needed

Kueue reads the certificate of its metrics from a fixed place in /etc, so it runs in a mount namespace of its own, where that is ours.
"""

import os
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import COMPONENTS, KUEUE, KWOK, build, is_built
from e2e.cluster.steps import BIN
from e2e.control_plane import ControlPlane, free_ports
from e2e.controllers import certificates, configuration, install_crd, install_hooks, source

QUEUE = "team"
API, VERSION = "/apis/kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta2"
HOOKED = ("v1-pod", "statefulset", "batch-v1-job", "kueue-x-k8s-io")
"""Webhooks by their path: of the kinds that we or Kueue make."""


def start(plane: ControlPlane, levels: list[str], gpus: int) -> None:
    """Kueue with a topology of these node labels and a quota of GPUs, for nodes with the label `gpu: h200`."""
    hook, health = free_ports(2)
    keys = certificates(plane.directory / "etc" / "kueue" / "metrics" / "certs")
    for crd in sorted((_manifests() / "crd" / "bases").glob("*.yaml")):
        install_crd(plane, crd)
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    config = plane.directory / "kueue.yaml"
    config.write_text(yaml.safe_dump(_configuration(hook, health, keys)))
    mount = f"mount -t overlay overlay -o lowerdir={plane.directory}/etc:/etc /etc"
    # its API for pending workloads wants a certificate at another fixed place
    flags = f"--config={config} --kubeconfig={plane.kubeconfig} --feature-gates=VisibilityOnDemand=false"
    os.environ["KUBECONFIG"] = str(plane.kubeconfig)
    plane.spawn("kueue", "unshare", "--mount", "sh", "-c", f"{mount} && exec {BIN / 'kueue'} {flags}")
    plane.until("kueue", lambda: urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2).status == 200)
    manifests = _manifests() / "webhook" / "manifests.yaml"
    install_hooks(plane, "kueue", manifests, hook, (keys / "tls.crt").read_bytes(), parts=HOOKED)
    _queue(plane, levels, gpus)


def open_queue(plane: ControlPlane, namespace: str) -> None:
    """For the jobs of a namespace."""
    queue = {"metadata": {"name": QUEUE}, "spec": {"clusterQueue": "all"}}
    _create(plane, f"{API}/namespaces/{namespace}/localqueues", "LocalQueue", queue)


def workloads(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
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


def _queue(plane: ControlPlane, levels: list[str], gpus: int) -> None:
    """Topology, flavor and quota."""
    topology = {"metadata": {"name": "default"}, "spec": {"levels": [{"nodeLabel": level} for level in levels]}}
    flavor = {"metadata": {"name": "h200"}, "spec": {"nodeLabels": {"gpu": "h200"}, "topologyName": "default"}}
    quota = [
        {"name": n, "nominalQuota": q} for n, q in (("nvidia.com/gpu", str(gpus)), ("cpu", "1k"), ("memory", "1Ti"))
    ]
    group = {"coveredResources": [q["name"] for q in quota], "flavors": [{"name": "h200", "resources": quota}]}
    queue = {"metadata": {"name": "all"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}
    _create(plane, f"{API}/topologies", "Topology", topology)
    _create(plane, f"{API}/resourceflavors", "ResourceFlavor", flavor)
    _create(plane, f"{API}/clusterqueues", "ClusterQueue", queue)


def _create(plane: ControlPlane, where: str, kind: str, body: dict[str, Any]) -> None:
    plane.call("POST", where, body | {"apiVersion": VERSION, "kind": kind})


if __name__ == "__main__":
    BIN.mkdir(parents=True, exist_ok=True)
    for component in (*COMPONENTS, KWOK, KUEUE):
        if not is_built(component):
            build(component)
