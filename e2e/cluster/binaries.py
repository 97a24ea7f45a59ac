"""Kubernetes, etcd, CoreDNS and Helm, compiled from the Go modules that `components/*/go.mod` pin."""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from steps import BIN, HERE, run_step

KUBERNETES_VERSION = "v1.34.3"


@dataclass(frozen=True)
class Component:
    """One Go module with `tool` lines for the programs we want from it.

    `go build` names a program after its package; `rename` says where that is not its name. `static` ones run in an image without libc.
    """

    name: str
    programs: tuple[str, ...]
    variables: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    static: bool = False


COMPONENTS = (
    Component(
        "kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"),
        # a build without these calls itself v0.0.0, and charts that ask for a Kubernetes version refuse it
        variables=(
            f"k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
            "k8s.io/component-base/version.gitMajor=1",
            "k8s.io/component-base/version.gitMinor=34",
        ),
    ),
    Component("etcd", ("etcd",), rename=(("server", "etcd"),)),
    Component("coredns", ("coredns",), static=True),
    Component("helm", ("helm",)),
)


def build_binaries() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    for component in COMPONENTS:
        build(component)


def build(component: Component) -> None:
    """Compile a component, unless what is there was made from the same module files, flags and compiler."""
    directory = HERE / "components" / component.name
    flags = " ".join(["-s", "-w", *(f"-X {variable}" for variable in component.variables)])
    stamp = BIN / f".{component.name}"
    recipe = recipe_of(directory, flags)
    present = all((BIN / program).exists() for program in component.programs)
    if present and stamp.exists() and stamp.read_text() == recipe:
        return
    command = ["go", "build", "-trimpath", f"-ldflags={flags}", "-o", f"{BIN}/", "tool"]
    env = {"GOFLAGS": "-mod=readonly"} | ({"CGO_ENABLED": "0"} if component.static else {})
    run_step(f"compiling {component.name}", command, cwd=directory, env=env)
    for built, name in component.rename:
        (BIN / built).rename(BIN / name)
    stamp.write_text(recipe)


def recipe_of(directory: Path, flags: str) -> str:
    go = subprocess.run(["go", "version"], check=True, capture_output=True).stdout
    modules = [(directory / name).read_bytes() for name in ("go.mod", "go.sum")]
    return hashlib.sha256(b"\0".join([go, flags.encode(), *modules])).hexdigest()
