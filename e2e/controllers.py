"""Controllers of others as processes alongside a control plane: what their manifests would install, with webhooks on loopback."""

import base64
import json
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import yaml

from e2e.cluster.binaries import Component
from e2e.control_plane import acting

RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
READY = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"


class Plane(Protocol):
    """A control plane: see e2e/control_plane.py, and e2e/local_plane.py for that of the local cluster."""

    directory: Path
    prefix: tuple[str, ...]
    """Before the command of a program that has its loopback."""

    def login(self) -> dict[str, Any]:
        """A kubeconfig for programs that run with this prefix."""

    def call(self, method: str, path: str, body: Any = None) -> Any: ...
    def install_crd(self, file: Path) -> None: ...
    def spawn(self, name: str, *command: str | Path) -> Any: ...
    def until(self, what: str, ready: Any) -> None: ...


@cache
def source(component: Component, module: str) -> Path:
    """The module that it is compiled from."""
    command = ("go", "mod", "download", "-json", module)
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=component.directory, timeout=300)
    return Path(json.loads(done.stdout)["Dir"])


def grant(plane: Plane, role: dict[str, Any], namespace: str, account: str) -> None:
    """The account in the namespace has this role; a Role there, a ClusterRole everywhere."""
    kind, name = role["kind"], role["metadata"]["name"]
    where = RIGHTS if kind == "ClusterRole" else f"{RIGHTS}/namespaces/{namespace}"
    plane.call("POST", f"{where}/{kind.lower()}s", role | {"metadata": {"name": name}})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    plane.call("POST", f"{where}/{kind.lower()}bindings", binding)


def login(plane: Plane, name: str, namespace: str, account: str) -> Path:
    """A kubeconfig with which the controller of this name is the account."""
    file = plane.directory / f"{name}.kubeconfig"
    file.write_text(yaml.safe_dump(acting(plane.login(), f"system:serviceaccount:{namespace}:{account}")))
    return file


def until_ready(plane: Plane, name: str, port: int) -> None:
    """It says so at its port for probes."""
    probe = (*plane.prefix, sys.executable, "-c", READY, f"http://127.0.0.1:{port}/readyz")
    plane.until(name, lambda: subprocess.run(probe, check=False, capture_output=True).returncode == 0)


def certificates(directory: Path) -> Path:
    directory.mkdir(parents=True)
    files = ("-keyout", directory / "tls.key", "-out", directory / "tls.crt")
    who = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *who)
    subprocess.run(command, check=True, capture_output=True)
    return directory


def install_crd(plane: Plane, file: Path) -> None:
    """Without a webhook between its versions: we speak only the one that is stored."""
    raw = yaml.safe_load(file.read_text())
    raw["spec"].pop("conversion", None)
    target = plane.directory / file.name
    target.write_text(yaml.safe_dump(raw))
    plane.install_crd(target)


def install_hooks(
    plane: Plane,
    name: str,
    manifests: Path,
    port: int,
    authority: bytes,
    *,
    parts: Collection[str] = ("",),
    label: str = "",
) -> None:
    """Those whose path has one of these parts. `name`: whose they are. `label`: of the pods that they ask about; empty: of all."""
    for raw in yaml.safe_load_all(manifests.read_text()):
        hooks = [h for h in raw["webhooks"] if any(part in h["clientConfig"]["service"]["path"] for part in parts)]
        for hook in hooks:
            where = hook["clientConfig"]["service"]["path"]
            if label and where.endswith("v1-pod"):
                hook["objectSelector"] = {"matchExpressions": [{"key": label, "operator": "Exists"}]}
            url = f"https://127.0.0.1:{port}{where}"
            hook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
        where, meta = f"/apis/{raw['apiVersion']}/{raw['kind'].lower()}s", {"name": f"{name}-{raw['metadata']['name']}"}
        plane.call("POST", where, raw | {"metadata": meta, "webhooks": hooks})


def configuration(hook: int, health: int, certificates: Path) -> dict[str, Any]:
    """What controllers made with kubebuilder have in common."""
    return {
        "webhook": {"host": "127.0.0.1", "port": hook, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
