"""The local cluster's control plane, for what e2e/kueue.py starts beside it: as e2e/control_plane.py, with kubelets."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.steps import STATE
from e2e.control_plane import CRDS, established
from e2e.kube import CommandFailed, Kube

SECONDS = 300


class LocalPlane:
    """`stop` ends what was spawned. What was made in the cluster stays."""

    def __init__(self, kube: Kube, directory: Path) -> None:
        self.directory, self._kube = directory, kube
        machine = (STATE / "cp.machine").read_text().strip()
        self.beside: tuple[str, ...] = ("nsenter", "-t", machine, "--net", "--")
        self._processes: list[subprocess.Popen[bytes]] = []

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

    def spawn(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory)
        self._processes.append(process)
        return process

    def until(self, what: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not ready():
            if time.monotonic() > end:
                raise CommandFailed(f"{what} is not ready after {SECONDS} s; see {self.directory}/{what}.log")
            time.sleep(0.2)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(timeout=30)
