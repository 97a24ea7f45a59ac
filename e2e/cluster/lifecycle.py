"""Bringing the local cluster up and down."""

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.binaries import KUBE_ROUTER, KUBERNETES_VERSION, build, build_binaries, is_built
from e2e.cluster.built_images import SOURCES, build_images, load_images
from e2e.cluster.steps import CACHE, SCRIPTS, STATE, StepFailed, run_step, say

VERSION = "kubernetes"
"""File in the state of a cluster: which version it runs."""
SYSTEM_IMAGES = ["registry.k8s.io/pause:3.10.1", "registry.k8s.io/coredns/coredns:v1.12.4"]


def up(nodes: int = 2, images: list[str] | None = None) -> None:
    """Bring up what is not: packages, binaries, the project's images, control plane, nodes, DNS and storage. A cluster of another version of
    Kubernetes is ended first: neither can read what the other has stored."""
    if STATE.exists() and running_version(STATE) != KUBERNETES_VERSION:
        down()
    run_step("packages", SCRIPTS / "install-packages")
    # images before nodes: a new node gets the seed's images as hard links, one that runs needs a copy
    with ThreadPoolExecutor() as pool:  # compiling keeps the processors busy, images the disk and the network
        compiled = pool.submit(build_binaries)
        load_images(build_images(list(SOURCES) if images is None else images))
        compiled.result()
    run_step("system images", SCRIPTS / "build-system-images")
    load_images(SYSTEM_IMAGES)
    run_step("control plane", SCRIPTS / "control-plane")
    (STATE / VERSION).write_text(KUBERNETES_VERSION)
    with ThreadPoolExecutor() as pool:
        list(pool.map(start_node, range(1, nodes + 1)))
    run_step("storage class", SCRIPTS / "volumes", "make")
    run_step("DNS", SCRIPTS / "dns")


def running_version(state: Path) -> str:
    """Version of the Kubernetes that this state is of; empty: its control plane never came up."""
    file = state / VERSION
    return file.read_text() if file.exists() else ""


def start_node(number: int) -> None:
    run_step(f"node {number}", SCRIPTS / "node", "start", str(number))


def stop_node(number: int, how: str) -> None:
    run_step(f"node {number}", SCRIPTS / "node", "stop", str(number), how)


@contextmanager
def policies_enforced(nodes: int = 2) -> Iterator[None]:
    """NetworkPolicies hold within; the cluster's network itself ignores them."""
    if not is_built(KUBE_ROUTER):
        build(KUBE_ROUTER)
    for number in range(1, nodes + 1):
        run_step(f"policies of node {number}", SCRIPTS / "policies", "enforce", f"node{number}")
    try:
        yield
    finally:
        for number in range(1, nodes + 1):
            run_step(f"policies of node {number}", SCRIPTS / "policies", "ignore", f"node{number}")


def down() -> None:
    """End the cluster, and fail if anything of it is left. Compiled binaries, built images and volumes stay."""
    run_step("ending the cluster", SCRIPTS / "down")
    left = leftovers()
    if left:
        raise StepFailed("left behind:\n" + "\n".join(left))
    say("nothing left: no process, mount, control group, interface or firewall rule of the cluster")


def purge() -> None:
    """`down`, and remove everything that was compiled, built or stored."""
    down()
    run_step("removing the cache", SCRIPTS / "purge")
    shutil.rmtree(CACHE)
    say(f"removed {CACHE}")


def leftovers() -> list[str]:
    """What a cluster could leave on the host, one line each."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(STATE) in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/rljob") if path.is_dir()]
    interfaces = [path.name for path in Path("/sys/class/net").iterdir() if path.name in ("br0", "cni0")]
    return [*processes(), *mounts, *groups, *interfaces, *firewall_rules()]


def processes() -> list[str]:
    """Those whose command line names the cluster's state: all its daemons, and PID 1 of its machines."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if f"{STATE}/" in command:
            found.append(f"process {directory.name}: {command[:100]}")
    return found


def firewall_rules() -> list[str]:
    rules = subprocess.run(["iptables-save"], check=False, capture_output=True, text=True).stdout
    return [line for line in rules.splitlines() if "10.244." in line or "10.96." in line]
