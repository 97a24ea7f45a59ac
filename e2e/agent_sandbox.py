"""The controllers of kubernetes-sigs/agent-sandbox as a process next to a control plane: what its manifests would install, with the rights that they
give it, without the webhook that converts between its versions."""

import yaml

from e2e.cluster.binaries import AGENT_SANDBOX, build, is_built
from e2e.cluster.steps import BIN
from e2e.control_plane import free_ports
from e2e.controllers import Plane, grant, install_crd, login, source, until_ready

NAMESPACE, ACCOUNT = "agent-sandbox-system", "agent-sandbox-controller"
ROLES = ("rbac", "extensions-rbac")


def start(plane: Plane) -> None:
    """Its CRDs, rights and controllers, which are compiled first."""
    if not is_built(AGENT_SANDBOX):
        build(AGENT_SANDBOX)
    manifests = source(AGENT_SANDBOX, "sigs.k8s.io/agent-sandbox") / "k8s"
    for crd in sorted((manifests / "crds").glob("*.yaml")):
        install_crd(plane, crd)
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for file in ROLES:
        grant(plane, yaml.safe_load((manifests / f"{file}.generated.yaml").read_text()), NAMESPACE, ACCOUNT)
    run(plane)


def run(plane: Plane) -> None:
    """Its controllers alone."""
    (health,) = free_ports(1)
    flags = (
        f"--kubeconfig={login(plane, AGENT_SANDBOX.name, NAMESPACE, ACCOUNT)}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        "--metrics-bind-address=0",
        "--extensions",
        "--enable-webhook=false",
        "--leader-elect=false",
    )
    plane.spawn(AGENT_SANDBOX.name, *plane.prefix, BIN / AGENT_SANDBOX.programs[0], *flags)
    until_ready(plane, AGENT_SANDBOX.name, health)
