"""Bringing the local cluster up and down."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from binaries import build_binaries
from built_images import build_images, load_images
from steps import BIN, CACHE, HERE, STATE, StepFailed, run_step, say

SYSTEM_IMAGES = ["registry.k8s.io/pause:3.10.1", "registry.k8s.io/coredns/coredns:v1.12.4"]


def up(nodes: int, images: list[str]) -> None:
    """Bring up what is not: packages, binaries, the project's given images, control plane, nodes, DNS and storage."""
    run_step("packages", [HERE / "install-packages"])
    build_binaries()
    run_step("system images", [HERE / "build-system-images"])
    # before the nodes start: a new node gets the seed's images as hard links, one that runs needs a copy
    load_images(SYSTEM_IMAGES + (build_images(images) if images else []))
    run_step("control plane", [HERE / "control-plane"])
    with ThreadPoolExecutor() as pool:
        list(pool.map(start_node, range(1, nodes + 1)))
    run_step("storage class", [HERE / "volumes", "make"])
    run_step("DNS", [HERE / "dns"])
    say(f"cluster up: {nodes} nodes; export KUBECONFIG={STATE}/kubeconfig PATH={BIN}:$PATH")


def start_node(number: int) -> None:
    run_step(f"node {number}", [HERE / "node", "start", str(number)])


def stop_node(number: int, how: str) -> None:
    run_step(f"node {number} {how}", [HERE / "node", "stop", str(number), how])


def down() -> None:
    """End the cluster, and fail if anything of it is left. Compiled binaries, built images and volumes stay."""
    run_step("ending the cluster", [HERE / "down"])
    left = leftovers()
    if left:
        raise StepFailed("left behind:\n" + "\n".join(left))
    say("nothing left: no process, namespace, mount, control group, interface or firewall rule of the cluster")


def purge() -> None:
    down()
    shutil.rmtree(CACHE, ignore_errors=True)
    say(f"removed {CACHE}")


def leftovers() -> list[str]:
    """What a cluster could leave on the host, one line each."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(STATE) in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/rljob") if path.is_dir()]
    interfaces = [path.name for path in Path("/sys/class/net").iterdir() if path.name in ("br0", "cni0")]
    return [*processes(), *mounts, *groups, *interfaces, *firewall_rules()]


def processes() -> list[str]:
    """Those whose command line names the cluster's state, or that are one of its machines."""
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
