"""The local cluster's control plane, for what e2e/kueue.py starts next to it: as e2e/control_plane.py, with kubelets."""

import json
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.steps import STATE
from e2e.control_plane import CRDS, Spawner, established
from e2e.kube import Kube


class LocalPlane(Spawner):
    """`stop` ends what was spawned. What was made in the cluster stays."""

    def __init__(self, kube: Kube, directory: Path) -> None:
        super().__init__(directory)
        self._kube = kube
        machine = (STATE / "cp.machine").read_text().strip()
        self.prefix: tuple[str, ...] = ("nsenter", "-t", machine, "--net", "--")

    def login(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((STATE / "inside.kubeconfig").read_text())
        return found

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """POST and GET."""
        if method == "GET":
            return json.loads(self._kube.kubectl("get", "--raw", path))
        return json.loads(self._kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body)))

    def install_crd(self, file: Path) -> None:
        crd = yaml.safe_load(file.read_text())
        name = crd["metadata"]["name"]
        self.call("POST", CRDS, crd)
        self.until(name, lambda: established(self.call("GET", f"{CRDS}/{name}")))
