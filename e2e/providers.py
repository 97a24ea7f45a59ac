"""Where the end-to-end tests and the demo find a cluster.

existing   the user's: RLJOB_KUBECONFIG, RLJOB_STORAGE_CLASS, RLJOB_OPERATOR_IMAGE and RLJOB_TRAINER_IMAGE name it; RLJOB_ENVIRONMENT_IMAGE may
local      Kubernetes in namespaces of this machine, as root on Linux (e2e/cluster)
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from e2e.cluster import built_images, lifecycle, steps

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ("RLJOB_KUBECONFIG", "RLJOB_STORAGE_CLASS", "RLJOB_OPERATOR_IMAGE", "RLJOB_TRAINER_IMAGE")


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
    environment_image: str
    """Empty where there is none."""

    def up(self) -> None: ...
    def down(self) -> None: ...
    def build_images(self) -> None: ...
    def stop_node(self, node: str, how: str = "power") -> None: ...
    def start_node(self, node: str) -> None: ...


def choose() -> Provider:
    """The first that this machine has, in the order above. Raises Unavailable with what to install."""
    if os.environ.get("RLJOB_KUBECONFIG"):
        return Existing()
    if lacking := local_lacks():
        raise Unavailable(
            f"No cluster to run on: one on this machine needs {', '.join(lacking)}. Do one of these:\n"
            "- name a cluster, of kind for example: RLJOB_KUBECONFIG (path), RLJOB_STORAGE_CLASS (ReadWriteMany), RLJOB_OPERATOR_IMAGE and\n"
            "  RLJOB_TRAINER_IMAGE (names that it can pull; docker build -f images/operator/Dockerfile and images/trainer/Dockerfile make them)\n"
            "- run as root on Debian or Ubuntu with Go 1.26 or later"
        )
    return Local()


def local_lacks() -> list[str]:
    """What this machine has not, of what a cluster on it needs."""
    needs = {
        "Linux": sys.platform == "linux",
        "root": os.geteuid() == 0,
        "Debian or Ubuntu (apt-get)": shutil.which("apt-get"),
        "Go 1.26 or later (go)": shutil.which("go"),
    }
    return [need for need, there in needs.items() if not there]


class Local:
    """The cluster of e2e/cluster: two nodes, node1 and node2."""

    name = "local"
    storage_class = "rljob-shared"
    kubeconfig = steps.KUBECONFIG
    tools = str(steps.BIN)

    def __init__(self) -> None:
        self.operator_image = self.trainer_image = self.environment_image = ""

    def up(self) -> None:
        lifecycle.up()

    def down(self) -> None:
        lifecycle.down()

    def build_images(self) -> None:
        names = built_images.build_images(["operator", "trainer", "environment"])
        self.operator_image, self.trainer_image, self.environment_image = names
        built_images.load_images(names)

    def stop_node(self, node: str, how: str = "power") -> None:
        lifecycle.stop_node(int(node.removeprefix("node")), how)

    def start_node(self, node: str) -> None:
        lifecycle.start_node(int(node.removeprefix("node")))


class Existing:
    """A cluster that somebody else runs: it pulls images from its own registry, and its nodes are left alone."""

    name = "existing"
    tools = ""

    def __init__(self) -> None:
        missing = [name for name in SETTINGS if not os.environ.get(name)]
        if missing:
            raise Unavailable(
                f"RLJOB_KUBECONFIG is set, {', '.join(missing)} not: set all of {', '.join(SETTINGS)}, or none to have a cluster made."
            )
        require("kubectl", "helm")
        kubeconfig, self.storage_class, self.operator_image, self.trainer_image = (os.environ[s] for s in SETTINGS)
        self.environment_image = os.environ.get("RLJOB_ENVIRONMENT_IMAGE", "")
        self.kubeconfig = Path(kubeconfig)

    def up(self) -> None:
        run("kubectl", f"--kubeconfig={self.kubeconfig}", "get", "storageclass", self.storage_class)

    def down(self) -> None:
        """Nothing of it is ours."""

    def build_images(self) -> None:
        """They are in its registry."""

    def stop_node(self, node: str, how: str = "power") -> None:
        raise Unavailable("tests that break a node run on the local cluster")

    start_node = stop_node


def shell_lines(provider: Provider) -> str:
    """For a user's shell: kubectl and helm, and `kubectl rljob` of this environment."""
    directories = ":".join(filter(None, (provider.tools, str(Path(sys.executable).parent))))
    return f"export KUBECONFIG={provider.kubeconfig}\nexport PATH={directories}:$PATH"


def require(*programs: str) -> None:
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise Unavailable(f"missing on PATH: {', '.join(missing)}")


def run(*command: str) -> str:
    """Standard output of a command that has to work; its progress and errors pass through to the terminal."""
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def main() -> int:
    """`python -m e2e.providers up|down`: the cluster with its images, for tests. `python -m e2e.stack` also installs the operator."""
    if sys.argv[1:] not in (["up"], ["down"]):
        print("usage: python -m e2e.providers up|down", file=sys.stderr)
        return 2
    try:
        provider = choose()
        provider.up() if sys.argv[1:] == ["up"] else provider.down()
    except (Unavailable, steps.StepFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
