"""Kubernetes, etcd, CoreDNS and Helm, compiled from the Go modules that `components/*/go.mod` pin.

Go keeps every package that it has compiled, and takes it again where version and cgo are the same. So all of these are built with cgo, as upstream
builds kubelet, and CoreDNS and Helm with the Kubernetes libraries of the default version: of Helm's 951 packages 91 are left to compile, and of
CoreDNS' 746 they are 111.
"""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.cluster.steps import BIN, HERE, KUBERNETES, run_step

KUBERNETES_VERSIONS = {"1.34": "v1.34.3", "1.35": "v1.35.4", "1.36": "v1.36.3", "1.37": "v1.37.2"}
"""Those that the tests run on, by minor version: `make test-kubernetes VERSION=1.35`. docs/support.md says which of them are tested when."""
KUBERNETES_VERSION = KUBERNETES_VERSIONS[KUBERNETES]
MAJOR, MINOR = KUBERNETES.split(".")


@dataclass(frozen=True)
class Component:
    """One Go module, with `tool` lines for the programs we want from it or with a `main.go` of ours.

    `go build` names a program after its package; `rename` says where that is not its name.
    """

    name: str
    programs: tuple[str, ...]
    variables: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    cgo: bool = False
    """Whether it may call C. Without it a program is static."""
    libc: bool = False
    """Whether the C library is linked into a program with cgo: CoreDNS runs in an image that has none."""
    version: str = ""
    """Of a component in several versions: the folder of its module, below that of its name."""

    @property
    def directory(self) -> Path:
        return HERE / "components" / self.name / self.version

    @property
    def package(self) -> str:
        return "." if (self.directory / "main.go").exists() else "tool"

    @property
    def linker_flags(self) -> str:
        static = ["-linkmode external", "-extldflags -static"] if self.libc else []
        return " ".join(["-s", "-w", *static, *(f"-X {variable}" for variable in self.variables)])

    @property
    def recipe(self) -> str:
        """Hash of the module's files, the flags and the compiler: what is built from the same needs no building."""
        go = subprocess.run(["go", "version"], check=True, capture_output=True).stdout
        files = [self.directory / "go.mod", self.directory / "go.sum", *sorted(self.directory.glob("*.go"))]
        return hashlib.sha256(
            b"\0".join([go, self.linker_flags.encode(), *(f.read_bytes() for f in files)])
        ).hexdigest()


COMPONENTS = (
    Component(
        "kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"),
        # a build without these calls itself v0.0.0, and charts that ask for a Kubernetes version refuse it
        variables=(
            f"k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
            f"k8s.io/component-base/version.gitMajor={MAJOR}",
            f"k8s.io/component-base/version.gitMinor={MINOR}",
        ),
        cgo=True,
        version=KUBERNETES,
    ),
    Component("etcd", ("etcd",), rename=(("server", "etcd"),), cgo=True),
    Component("coredns", ("coredns",), cgo=True, libc=True),
    Component(
        "helm",
        ("helm",),
        # `helm template` and `helm lint` without a cluster take Kubernetes 1.20 otherwise, which our charts refuse
        variables=tuple(
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}"
            for package in ("chartutil", "lint/rules")
            for part in (f"Major={MAJOR}", f"Minor={MINOR}")
        ),
        cgo=True,
    ),
)
KWOK = Component("kwok", ("kwok",))
"""Nodes and pods that only say that they run: for benchmarks/scale.py, which builds it itself."""
KUEUE_VERSION = os.environ.get("RLJOB_KUEUE") or "0.19"
"""Minor version, one of components/kueue-*: `make kueue KUEUE=0.18`."""
KUEUE = Component(f"kueue-{KUEUE_VERSION}", (f"kueue-{KUEUE_VERSION}",), rename=(("kueue", f"kueue-{KUEUE_VERSION}"),))
"""For tests/kueue; see e2e/kueue.py, which builds it."""
JOBSET = Component("jobset", ("jobset",))
LWS = Component("lws", ("lws",), rename=(("cmd", "lws"),))
"""Controllers of JobSets and LeaderWorkerSets: for benchmarks/peers.py, which builds them itself."""
AGENT_SANDBOX = Component("agent-sandbox", ("agent-sandbox-controller",))
"""Makes pods of environments: for e2e/test_x_agent_sandbox.py; see e2e/agent_sandbox.py, which builds it."""
NVIDIA_DEVICE_PLUGIN = Component("nvidia-device-plugin", ("nvidia-device-plugin",), cgo=True)
"""Makes a node's GPUs a resource: for benchmarks/gpu_cluster, which builds it. It loads the driver's library, so not static."""
KUBE_ROUTER = Component("kube-router", ("kube-router",))
"""Enforces NetworkPolicies: for e2e/test_k_network.py, which builds it."""


COLLECT_AT = "400"
"""Percent by which a compiler's memory grows before its garbage is collected (GOGC; 100 by default), which saves a seventh of its processor time."""


def build_binaries() -> None:
    BIN.mkdir(parents=True, exist_ok=True)
    missing = [component for component in COMPONENTS if not is_built(component)]
    for done, component in enumerate(missing, 1):
        build(component, then=[later.name for later in missing[done:]])


def is_built(component: Component) -> bool:
    stamp = stamp_of(component)
    present = all((BIN / program).exists() for program in component.programs)
    return present and stamp.exists() and stamp.read_text() == component.recipe


def build(component: Component, then: Sequence[str] = ()) -> None:
    """`then` is compiled after it, and named on its lines of progress."""
    env = {"GOFLAGS": "-mod=readonly", "GOGC": COLLECT_AT, "CGO_ENABLED": str(int(component.cgo))}
    left = "".join(f", then {name}" for name in then)
    listing = run_step(
        f"packages of {component.name}", "go", "list", "-deps", component.package, cwd=component.directory, env=env
    )
    command = [
        "go",
        "build",
        "-v",
        "-trimpath",
        f"-ldflags={component.linker_flags}",
        "-o",
        f"{BIN}/",
        component.package,
    ]
    progress = partial(packages_compiled, total=len(packages(listing.read_text())), then=left)
    run_step(f"compiling {component.name}", *command, cwd=component.directory, env=env, progress=progress)
    for built, name in component.rename:
        (BIN / built).rename(BIN / name)
    stamp_of(component).write_text(component.recipe)


def packages_compiled(log: str, total: int, then: str) -> str:
    """Go keeps what it has compiled, so the count may start in the middle of the way."""
    done = len(packages(log))
    return (f"{done} of {total} packages" if done else "reading the cache of packages") + then


def packages(log: str) -> list[str]:
    """Those that `go list` or `go build -v` has named, without what Go says of downloads."""
    return [line for line in log.splitlines() if line and not line.startswith("go: ")]


def stamp_of(component: Component) -> Path:
    return BIN / f".{component.name}"
