"""Where the end-to-end tests and the demo find a cluster.

existing   the user's: RLJOB_KUBECONFIG, RLJOB_IMAGE_REPOSITORY and RLJOB_STORAGE_CLASS name it
kind       Kubernetes in Docker, where Docker answers
local      Kubernetes in namespaces of this machine, as root on Linux (e2e/cluster)
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from e2e.cluster import built_images, lifecycle, steps

ROOT = Path(__file__).resolve().parents[1]
VOLUMES = [f"shared-{i:02d}" for i in range(1, 25)]


class Unavailable(RuntimeError):
    """No cluster can be had on this machine; the message says what to install or set."""


class Provider(Protocol):
    """Images have names once `build_images` has run. Hooks that a cluster cannot offer raise Unavailable."""

    name: str
    kubeconfig: Path
    storage_class: str
    """Its volumes are ReadWriteMany, and writable for user 65532."""
    tools: str
    """Directory with kubectl and helm; empty when they are on PATH."""
    operator_image: str
    trainer_image: str

    def up(self) -> None: ...
    def down(self) -> None: ...
    def build_images(self) -> None: ...
    def load_image(self, image: str) -> None: ...
    def stop_node(self, node: str, how: str = "power") -> None: ...
    def start_node(self, node: str) -> None: ...


def choose() -> Provider:
    """The first that this machine has, in the order above. Raises Unavailable with what to install."""
    if os.environ.get("RLJOB_KUBECONFIG"):
        return Existing()
    if answers("docker", "info"):
        return Kind()
    if sys.platform == "linux" and os.geteuid() == 0:
        return Local()
    raise Unavailable(
        "No cluster to run on. Do one of these:\n"
        "- install Docker, kind, kubectl and helm\n"
        "- name a cluster: RLJOB_KUBECONFIG (path), RLJOB_IMAGE_REPOSITORY (Docker pushes to it, the cluster pulls from it),\n"
        "  RLJOB_STORAGE_CLASS (ReadWriteMany)\n"
        "- run as root on Debian or Ubuntu with Go 1.24 or later"
    )


class Local:
    """The cluster of e2e/cluster: two nodes, node1 and node2."""

    name = "local"
    storage_class = "rljob-shared"
    kubeconfig = steps.KUBECONFIG
    tools = str(steps.BIN)

    def __init__(self) -> None:
        self.operator_image = self.trainer_image = ""

    def up(self) -> None:
        lifecycle.up()

    def down(self) -> None:
        lifecycle.down()

    def build_images(self) -> None:
        self.operator_image, self.trainer_image = built_images.build_images(["operator", "trainer"])
        built_images.load_images([self.operator_image, self.trainer_image])

    def load_image(self, image: str) -> None:
        built_images.load_images([image])

    def stop_node(self, node: str, how: str = "power") -> None:
        lifecycle.stop_node(int(node.removeprefix("node")), how)

    def start_node(self, node: str) -> None:
        lifecycle.start_node(int(node.removeprefix("node")))


class Kind:
    """A kind cluster of two workers, which share a directory of the host for volumes. Not yet run by us."""

    name = "kind"
    storage_class = "rljob-shared"
    tools = ""

    def __init__(self) -> None:
        require("kind", "kubectl", "helm")
        self.directory = steps.CACHE / "kind"
        self.kubeconfig = self.directory / "kubeconfig"
        self.operator_image = self.trainer_image = ""

    def up(self) -> None:
        if "rljob" not in run("kind", "get", "clusters").split():
            self._create()
        objects = [storage_class(self.storage_class), *(host_volume(self.storage_class, name) for name in VOLUMES)]
        manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        run("kubectl", f"--kubeconfig={self.kubeconfig}", "apply", "-f", "-", stdin=manifest)

    def _create(self) -> None:
        directory = self.directory / "volumes"
        for name in VOLUMES:
            (directory / name).mkdir(parents=True, exist_ok=True)
            (directory / name).chmod(0o777)
        mount = {"hostPath": str(directory), "containerPath": "/volumes"}
        nodes = [{"role": "control-plane"}, *({"role": "worker", "extraMounts": [mount]} for _ in range(2))]
        config = json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes})
        run("kind", "create", "cluster", "--name=rljob", f"--kubeconfig={self.kubeconfig}", "--config=-", stdin=config)

    def down(self) -> None:
        run("kind", "delete", "cluster", "--name=rljob", f"--kubeconfig={self.kubeconfig}")
        shutil.rmtree(self.directory, ignore_errors=True)

    def build_images(self) -> None:
        self.operator_image, self.trainer_image = docker_build("rljob.dev")
        for image in (self.operator_image, self.trainer_image):
            self.load_image(image)

    def load_image(self, image: str) -> None:
        run("kind", "load", "docker-image", "--name=rljob", image)

    def stop_node(self, node: str, how: str = "power") -> None:
        commands = {
            "kubelet": ("exec", node, "systemctl", "stop", "kubelet"),
            "power": ("kill", node),
            "unplug": ("network", "disconnect", "kind", node),
            "pause": ("pause", node),
        }
        run("docker", *commands[how])

    def start_node(self, node: str) -> None:
        state = json.loads(run("docker", "inspect", node))[0]
        if state["State"]["Paused"]:
            run("docker", "unpause", node)
        if not state["NetworkSettings"]["Networks"]:
            run("docker", "network", "connect", "kind", node)
        if not state["State"]["Running"]:
            run("docker", "start", node)
        run("docker", "exec", node, "systemctl", "start", "kubelet")


class Existing:
    """A cluster that somebody else runs: images go through its registry, nodes are left alone. Not yet run by us."""

    name = "existing"
    tools = ""

    def __init__(self) -> None:
        missing = [name for name in ("RLJOB_IMAGE_REPOSITORY", "RLJOB_STORAGE_CLASS") if not os.environ.get(name)]
        if missing:
            raise Unavailable(
                f"RLJOB_KUBECONFIG is set, {' and '.join(missing)} not: set all three, or none to have a cluster made."
            )
        require("docker", "kubectl", "helm")
        self.kubeconfig = Path(os.environ["RLJOB_KUBECONFIG"])
        self.repository = os.environ["RLJOB_IMAGE_REPOSITORY"].rstrip("/")
        self.storage_class = os.environ["RLJOB_STORAGE_CLASS"]
        self.operator_image = self.trainer_image = ""

    def up(self) -> None:
        run("kubectl", f"--kubeconfig={self.kubeconfig}", "get", "storageclass", self.storage_class)

    def down(self) -> None:
        """Nothing of it is ours."""

    def build_images(self) -> None:
        self.operator_image, self.trainer_image = docker_build(self.repository)
        for image in (self.operator_image, self.trainer_image):
            self.load_image(image)

    def load_image(self, image: str) -> None:
        run("docker", "push", image)

    def stop_node(self, node: str, how: str = "power") -> None:
        raise Unavailable("tests that break a node run on the local cluster or on kind")

    start_node = stop_node


def docker_build(repository: str) -> list[str]:
    """Images of operator and trainer, in this order."""
    names = {image: built_images.image_name(image, repository) for image in built_images.SOURCES}
    for image, name in names.items():
        run("docker", "build", "-t", name, "-f", str(ROOT / f"images/{image}/Dockerfile"), str(ROOT))
    return list(names.values())


def storage_class(name: str) -> dict[str, Any]:
    metadata = {"name": name}
    provisioner = "kubernetes.io/no-provisioner"
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata, "provisioner": provisioner}


def host_volume(class_name: str, name: str) -> dict[str, Any]:
    """A directory that all nodes of the kind cluster see."""
    spec = {
        "storageClassName": class_name,
        "capacity": {"storage": "100Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": f"/volumes/{name}", "type": "Directory"},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def require(*programs: str) -> None:
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise Unavailable(f"missing on PATH: {', '.join(missing)}")


def answers(*command: str) -> bool:
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def run(*command: str, stdin: str | None = None) -> str:
    """Standard output of a command that has to work; its progress and errors pass through to the terminal."""
    return subprocess.run(command, check=True, text=True, input=stdin, stdout=subprocess.PIPE).stdout


def main() -> int:
    """`python -m e2e.providers up|down`."""
    try:
        provider = choose()
        provider.up() if sys.argv[1:] == ["up"] else provider.down()
    except (Unavailable, steps.StepFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    print(
        f"export KUBECONFIG={provider.kubeconfig}" + (f"\nexport PATH={provider.tools}:$PATH" if provider.tools else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
