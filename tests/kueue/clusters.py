"""Two clusters as docs/placement.md and examples/kueue describe them: jobs are created in one, whose Kueue sends them to the other."""

import base64
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from api.specs import raw_spec
from e2e import kueue, kwok
from e2e.cluster.steps import BIN, REPOSITORY
from e2e.control_plane import ControlPlane, acting, free_ports, kubeconfig
from e2e.kube import Kube, wait_for
from rljob_api import names
from rljob_operator.kube.api import Object
from simulator.objects import job_object

EXAMPLE = REPOSITORY / "examples" / "kueue"
NAMESPACE, REMOTE, ACCOUNT = "team-a", "east", "system:serviceaccount:kueue-system:multikueue"
JOBS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
WORKLOADS = f"{kueue.API}/namespaces/{NAMESPACE}/workloads"
NODES = 4
SPEC = raw_spec(
    managedBy="kueue.x-k8s.io/multikueue",
    trainer={"device": "gpu", "nodes": 1, "processesPerNode": 8},
    rollout={"replicas": 8},
    train={"steps": 10**6, "promptsPerStep": 24},
    scheduling={"backend": "builtin", "topologyLevels": ["rack"]},
    lifecycle={"backoffSeconds": 0},
)
"""As many pods as the example's Workload counts."""
EXTERNAL = {"externalFrameworks": [{"name": "RLJob.v1alpha1.rljob.dev"}]}


@dataclass
class Clusters:
    """Each with Kueue and an operator; nodes and a scheduler only where pods run."""

    first: ControlPlane
    other: ControlPlane


@dataclass
class Sender:
    """A user of the first cluster, with the job `demo`."""

    plane: ControlPlane

    def submit(self) -> None:
        """The job, and the Workload of the example for it."""
        job = self.plane.call("POST", JOBS, job_object("demo", SPEC, NAMESPACE))
        workload = yaml.safe_load((EXAMPLE / "workload.yaml").read_text())
        (owner,) = workload["metadata"]["ownerReferences"]
        owner |= {"name": "demo", "uid": job["metadata"]["uid"]}
        self.plane.call("POST", WORKLOADS, workload | {"metadata": workload["metadata"] | {"name": "demo"}})

    @property
    def job(self) -> Object:
        found: Object = self.plane.call("GET", f"{JOBS}/demo")
        return found

    @property
    def status(self) -> Object:
        found: Object = self.job.get("status", {})
        return found

    def set_active(self, active: bool) -> None:
        """As `kubectl kueue stop workload` and `resume workload` do."""
        change = json.dumps({"spec": {"active": active}})
        Kube(self.plane.kubeconfig, NAMESPACE, str(BIN)).kubectl(
            "patch", "workload", "demo", "--type=merge", "-p", change
        )

    def delete(self) -> None:
        self.plane.call("DELETE", f"{JOBS}/demo")


@contextmanager
def clusters(directory: Path) -> Iterator[Clusters]:
    collector = "garbage-collector-controller"
    with (
        ControlPlane(directory / "first", managers=True, controllers=collector) as first,
        ControlPlane(directory / "other", managers=True) as other,
    ):
        for plane, settings in ((first, {"multiKueue": EXTERNAL}), (other, {})):
            plane.install_crd()
            kueue.start(plane, **settings)
            run_operator(plane)
            plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        open_other(other)
        connect(first, other)
        yield Clusters(first, other)


def run_operator(plane: ControlPlane) -> None:
    (port,) = free_ports(1)
    command = (sys.executable, "-m", "rljob_operator", "--progress-interval", "0.3", "--health-port", str(port))
    plane.spawn("operator", "env", f"KUBECONFIG={plane.kubeconfig}", *command)


def open_other(plane: ControlPlane) -> None:
    """Nodes, a queue, and the account of the first cluster."""
    for number in range(NODES):
        plane.call("POST", "/api/v1/nodes", kwok.node(f"n{number}", {"rack": f"r{number // 2}"}))
    kwok.start(plane)
    apply(plane, "worker.yaml")


def connect(first: ControlPlane, other: ControlPlane) -> None:
    """The first cluster knows how to reach the other, by an account that may do what the example allows."""
    login = base64.b64encode(yaml.safe_dump(trusted(other)).encode()).decode()
    secret = {"metadata": {"name": REMOTE}, "data": {"kubeconfig": login}}
    first.call("POST", f"/api/v1/namespaces/{kueue.NAMESPACE}/secrets", secret)
    apply(first, "multikueue.yaml")
    where = f"{kueue.API}/multikueueclusters/{REMOTE}"
    wait_for("the other cluster", lambda: is_active(first.call("GET", where)), 300)


def trusted(plane: ControlPlane) -> dict[str, Any]:
    """Kueue takes no kubeconfig that leaves the server's certificate unverified."""
    config = acting(kubeconfig(plane.url), ACCOUNT)
    authority = (plane.directory / "certificates" / "apiserver.crt").read_bytes()
    (cluster,) = config["clusters"]
    cluster["cluster"] = {"server": plane.url, "certificate-authority-data": base64.b64encode(authority).decode()}
    return config


def is_active(cluster: dict[str, Any]) -> bool:
    conditions = cluster.get("status", {}).get("conditions", [])
    return any(c["type"] == "Active" and c["status"] == "True" for c in conditions)


def apply(plane: ControlPlane, file: str) -> None:
    Kube(plane.kubeconfig, path=str(BIN)).run("kubectl", "apply", "--server-side", "-f", str(EXAMPLE / file))
