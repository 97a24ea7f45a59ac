"""Pack what the local cluster needs on a GPU machine that has no network and no package of its own for it.

    python -m benchmarks.gpu_cluster.pack OUT [programs|operator]

Writes compressed archives in pieces of at most 44 MiB, which `unpack` joins there:

programs   Kubernetes as one program, etcd, CoreDNS, NVIDIA's device plugin; containerd, runc, ip, socat and iptables of this host with
           the libraries that they load (`make cluster-up` installs them): OUT/programs.00, ... Minutes, but they change with a lock only
operator   the chart's rendered manifests, the Python packages of the operator and of the kubectl plugin: OUT/operator.00
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from e2e.cluster.binaries import COMPONENTS, KUBERNETES_VERSION, NVIDIA_DEVICE_PLUGIN, Component, build, is_built
from e2e.cluster.steps import BIN, REPOSITORY, SCRIPTS

PIECE = "44m"
KUBERNETES, *OTHERS = COMPONENTS
CARRIED = ("etcd", "coredns", "nvidia-device-plugin")
HOST_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip", "socat")
FIREWALLS = ("xtables-nft-multi", "xtables-legacy-multi")
"""iptables for either interface of the kernel; `unpack` takes the one that works there."""
CNI, CNI_PLUGINS = Path("/usr/lib/cni"), ("bridge", "host-local", "loopback", "portmap")
LIBC = re.compile(r"lib(c|m|dl|rt|pthread|resolv)\.so|ld-linux|linux-vdso")
OPERATOR_SETTINGS = (
    "--set-string=image.repository=rljob.dev/operator",
    "--set-string=image.tag=gpu",
    "--set=progressIntervalSeconds=2",
)


def main(out: Path, wanted: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in wanted or PARTS:
        with tempfile.TemporaryDirectory() as directory:
            for add in PARTS[name]:
                add(Path(directory))
            compress(Path(directory), out, name)
        for piece in sorted(out.glob(f"{name}.*")):
            print(f"{piece} {piece.stat().st_size / 2**20:.1f} MiB")


def compile_programs(tools: Path) -> None:
    for component in (*OTHERS, NVIDIA_DEVICE_PLUGIN):
        if not is_built(component):
            build(component)
    (tools / "bin").mkdir()
    for program in CARRIED:
        shutil.copy(BIN / program, tools / "bin")
    subprocess.run(["gcc", "-O2", "-static", "-o", tools / "bin/pause", SCRIPTS / "pause.c"], check=True)
    compile_kubernetes(KUBERNETES, tools / "bin/kube")


def compile_kubernetes(component: Component, program: Path) -> None:
    """From the component's own versions, with our main function."""
    with tempfile.TemporaryDirectory() as directory:
        for file in (*component.directory.glob("go.*"), Path(__file__).parent / "kubernetes/main.go"):
            shutil.copy(file, directory)
        flags = ("-trimpath", "-mod=readonly", f"-ldflags={component.linker_flags}")
        subprocess.run(["go", "build", *flags, "-o", program, "."], cwd=directory, check=True)


def copy_host_programs(tools: Path) -> None:
    for name in ("sbin", "lib", "cni", "xtables"):
        (tools / name).mkdir()
    for program in HOST_PROGRAMS + FIREWALLS:
        found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert found, f"{program} is missing: run e2e/cluster/scripts/install-packages"
        shutil.copy(found, tools / "sbin")
        for library in libraries(found):
            shutil.copy(library, tools / "lib")
    for plugin in CNI_PLUGINS:
        shutil.copy(CNI / plugin, tools / "cni")
    for extension in Path("/usr/lib").glob("*/xtables/*.so"):
        shutil.copy(extension, tools / "xtables")


def libraries(program: str) -> list[str]:
    """What it loads, but for libc, which the machine has."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return [path for name, path in re.findall(r"(\S+) => (\S+)", listed) if not LIBC.search(name)]


def render_chart(tools: Path) -> None:
    """What Helm makes of it, and would install."""
    helm = ("helm", "template", "rljob", REPOSITORY / "charts/rljob", "-n", "rljob-system", *OPERATOR_SETTINGS)
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [*map(str, helm), f"--kube-version={KUBERNETES_VERSION}"]
    rendered = subprocess.run(command, check=True, capture_output=True, env=environment)
    (tools / "operator.yaml").write_bytes(rendered.stdout)


def install_packages(tools: Path) -> None:
    """The operator's from its lock; the plugin's, which has none, at the versions of the tests."""
    pip = (
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--python",
        sys.executable,
        "--target",
        tools / "packages",
    )
    locked = ("--no-deps", "--require-hashes", "-r", REPOSITORY / "images/operator/requirements.txt")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    plugin = ("-c", REPOSITORY / "tests/requirements.txt", *project["optional-dependencies"]["cli"])
    for what in (plugin, locked):
        subprocess.run([*pip, *what], check=True)


def compress(tools: Path, out: Path, name: str) -> None:
    """As one stream with a filter for x86 code and a dictionary as long as all of it: the programs share much."""
    for former in out.glob(f"{name}.*"):
        former.unlink()
    pipeline = (
        "set -o pipefail; tar c --exclude=__pycache__ --sort=name --owner=0 --group=0 . |"
        f' xz -T1 --x86 --lzma2=preset=6,dict=256MiB | split -b {PIECE} -d - "$1"'
    )
    subprocess.run(["bash", "-c", pipeline, "pack", f"{out.resolve()}/{name}."], cwd=tools, check=True)


PARTS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "programs": (compile_programs, copy_host_programs),
    "operator": (render_chart, install_packages),
}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
